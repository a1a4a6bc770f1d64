//! Every hook that tracer can attach: what it is, and what the user is blind to without it.

use crate::{kernel::features::Features, record::HookState};

/// A hook.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The tracepoint.
    pub tracepoint: &'static str,
    /// The program in the kernel half. The kernel keeps 15 bytes of its name; the prefix `tracer_` tells ours.
    pub program: fn(&Features) -> &'static str,
    /// Whether this kernel lacks what it needs beyond the tracepoint, or refuses it, and why in the user's words.
    pub refusal: fn(&Features) -> Option<(HookState, String)>,
    /// What is missed without it.
    pub without: Without,
}

/// What is missed without a hook.
#[derive(Clone, Copy, Debug)]
pub struct Without {
    /// The stable name of the blind spot.
    pub code: &'static str,
    /// What it means for the reader of a report.
    pub summary: &'static str,
}

/// The hooks in the order in which they are attached: what ends a packet's path before what begins it, so that
/// no packet is seen to leave whose drop would be missed.
pub const PROBES: &[Probe] = &[
    Probe {
        tracepoint: "kfree_skb",
        // It has one argument more where the kernel says why.
        program: |features| {
            if features.drop_has_reason {
                "tracer_drop"
            } else {
                "tracer_drop_old"
            }
        },
        refusal: packet,
        without: DROPS,
    },
    Probe {
        tracepoint: "consume_skb",
        program: |_| "tracer_consume",
        refusal: consume,
        without: Without {
            code: "listener_unseen",
            summary: "that a listening socket took a SYN cannot be seen, only concluded from its answer",
        },
    },
    Probe {
        tracepoint: "netif_receive_skb",
        program: |_| "tracer_receive",
        refusal: packet,
        without: Without {
            code: "receive_unseen",
            summary: "packets that enter a device cannot be seen: nothing can be said of what arrived",
        },
    },
    Probe {
        tracepoint: "net_dev_xmit",
        program: |_| "tracer_xmit_err",
        refusal: packet,
        without: Without {
            code: "xmit_failure_unseen",
            summary: "a packet that its driver refused looks as if it had been sent",
        },
    },
    Probe {
        tracepoint: "net_dev_start_xmit",
        program: |_| "tracer_xmit",
        refusal: packet,
        without: Without {
            code: "xmit_unseen",
            summary: "packets that leave through a device cannot be seen: nothing can be said of what was sent",
        },
    },
    Probe {
        tracepoint: "inet_sock_set_state",
        program: |_| "tracer_state",
        refusal: socket,
        without: Without {
            code: "socket_state_unseen",
            summary: "a process that has closed its connection soon is not named, and its socket's states are not seen",
        },
    },
    Probe {
        tracepoint: "tcp_retransmit_skb",
        program: |_| "tracer_rtx",
        refusal: socket,
        without: RETRANSMITS,
    },
    Probe {
        tracepoint: "tcp_retransmit_synack",
        program: |_| "tracer_rtx_sa",
        refusal: socket,
        without: RETRANSMITS,
    },
    Probe {
        tracepoint: "tcp_send_reset",
        program: |_| "tracer_rst_out",
        refusal: socket,
        without: RESETS,
    },
    Probe {
        tracepoint: "tcp_receive_reset",
        program: |_| "tracer_rst_in",
        refusal: socket,
        without: RESETS,
    },
];

const DROPS: Without = Without {
    code: "drops_unseen",
    summary: "dropped packets cannot be seen: no loss on this node can be proven",
};

const RETRANSMITS: Without = Without {
    code: "retransmit_unseen",
    summary: "that a packet is a retransmission is not said by its socket, only concluded from its numbers",
};

const RESETS: Without = Without {
    code: "reset_unseen",
    summary: "who sent or received a reset is not said by the socket, only seen on devices",
};

fn packet(features: &Features) -> Option<(HookState, String)> {
    features.lacks_packet_field().map(lacks)
}

fn consume(features: &Features) -> Option<(HookState, String)> {
    if !features.consume_has_location {
        let reason = "this kernel does not say who consumes a packet".to_owned();
        return Some((HookState::Absent, reason));
    }
    if features.consumer.is_none() {
        let reason = "the address of tcp_rcv_state_process is hidden: root, or CAP_SYSLOG with \
                      kernel.kptr_restrict below 2, is needed to read /proc/kallsyms";
        return Some((HookState::Failed, reason.to_owned()));
    }
    packet(features)
}

fn socket(features: &Features) -> Option<(HookState, String)> {
    features.lacks_socket_field().map(lacks)
}

fn lacks(field: &str) -> (HookState, String) {
    let reason = format!("this kernel's type information lacks {field}");
    (HookState::Absent, reason)
}
