//! What the contract promises about one flow, and how a report differs from it.

use serde_json::Value;

use crate::kernel::{Release, has_drop_reason};

/// The verdict that a view must reach on a flow. What is not set is not looked at.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Expected {
    code: Option<&'static str>,
    confidence: &'static str,
    netns: Option<&'static str>,
    devices: &'static [&'static str],
    stage: Option<&'static str>,
    causes: &'static [&'static str],
    drop_reason: Option<&'static str>,
    function: Option<(&'static str, Release)>,
    says: Option<&'static str>,
    next: Option<&'static str>,
    mtu: Option<u64>,
    icmp_fate: Option<&'static str>,
    has_losses: bool,
    request_unseen: bool,
}

const ANYTHING: Expected = Expected {
    code: None,
    confidence: "",
    netns: None,
    devices: &[],
    stage: None,
    causes: &[],
    drop_reason: None,
    function: None,
    says: None,
    next: None,
    mtu: None,
    icmp_fate: None,
    has_losses: false,
    request_unseen: false,
};

/// An event of the trace shows it.
pub const fn proven(code: &'static str) -> Expected {
    Expected {
        code: Some(code),
        confidence: "proven",
        ..ANYTHING
    }
}

/// Absence shows it.
pub const fn inferred(code: &'static str) -> Expected {
    Expected {
        code: Some(code),
        confidence: "inferred",
        ..ANYTHING
    }
}

/// The handshake completed in view.
pub const fn answered() -> Expected {
    proven("answered")
}

/// The evidence does not carry a verdict.
pub const fn inconclusive() -> Expected {
    Expected {
        code: Some("inconclusive"),
        confidence: "inconclusive",
        ..ANYTHING
    }
}

/// No packet of the flow comes into this view.
pub const fn unseen() -> Expected {
    ANYTHING
}

/// The SYN was seen to leave node-a, and nothing came back.
pub const SYN_LEFT_NODE_A: Expected = inferred("request_left_node").at("node-a", &["ens0"]);

/// The SYN-ACK was seen to leave node-b, and no ACK came.
pub const SYN_ACK_LEFT_NODE_B: Expected = inferred("reply_left_node").at("node-b", &["ens0"]);

/// A rule of nftables killed the packet.
pub const fn by_netfilter(code: &'static str) -> Expected {
    proven(code)
        .cause(&["netfilter"])
        .reason("NETFILTER_DROP")
        // Before that nftables only returned its verdict, and `nf_hook_slow` freed the packet.
        .function_since("nft_do_chain", Release(6, 7))
}

impl Expected {
    /// In the namespace of this name, on one of these devices.
    pub const fn at(mut self, netns: &'static str, devices: &'static [&'static str]) -> Self {
        self.netns = Some(netns);
        self.devices = devices;
        self
    }

    /// At this stage.
    pub const fn stage(mut self, stage: &'static str) -> Self {
        self.stage = Some(stage);
        self
    }

    /// For one of these causes.
    pub const fn cause(mut self, codes: &'static [&'static str]) -> Self {
        self.causes = codes;
        self
    }

    /// With this `enum skb_drop_reason`, where the kernel has it.
    pub const fn reason(mut self, drop_reason: &'static str) -> Self {
        self.drop_reason = Some(drop_reason);
        self
    }

    /// Freed by this kernel function, whatever suffix the compiler gave it.
    pub const fn function(self, function: &'static str) -> Self {
        self.function_since(function, Release(0, 0))
    }

    /// The same, on kernels from this release on.
    pub const fn function_since(mut self, function: &'static str, first: Release) -> Self {
        self.function = Some((function, first));
        self
    }

    /// In a sentence with these words.
    pub const fn says(mut self, words: &'static str) -> Self {
        self.says = Some(words);
        self
    }

    /// And what is to be done has these words in it.
    pub const fn next(mut self, words: &'static str) -> Self {
        self.next = Some(words);
        self
    }

    /// For a packet that is larger than this.
    pub const fn mtu(mut self, mtu: u64) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// With this fate of the ICMP error that tells the sender of a packet that it was too big.
    pub const fn icmp(mut self, fate: &'static str) -> Self {
        self.icmp_fate = Some(fate);
        self
    }

    /// And copies were lost on the way, which the report must tell.
    pub const fn with_losses(mut self) -> Self {
        self.has_losses = true;
        self
    }

    /// And the request came before the trace, which the report must tell.
    pub const fn request_unseen(mut self) -> Self {
        self.request_unseen = true;
        self
    }

    /// The exit code that a report with this flow alone must have; `None` where there is no flow.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        Some(match self.code? {
            "answered" | "one_way" => 0,
            "inconclusive" => 11,
            _ => 10,
        })
    }

    /// Says how a flow of a report (`None`: there is none) differs from what is expected.
    pub(crate) fn differences(&self, flow: Option<&Value>) -> Vec<String> {
        let (code, flow) = match (self.code, flow) {
            (None, None) => return Vec::new(),
            (None, Some(_)) => return vec!["the flow is in a view that never saw it".to_owned()],
            (Some(code), None) => return vec![format!("the flow is missing, want {code}")],
            (Some(code), Some(flow)) => (code, flow),
        };
        let mut differences = Vec::new();
        let mut want = |path: &str, any_of: &[&str]| {
            let found = flow.pointer(path).and_then(Value::as_str).unwrap_or("null");
            if !any_of.is_empty() && !any_of.contains(&found) {
                differences.push(format!("{path} is {found}, want {}", any_of.join(" or ")));
            }
        };
        want("/verdict/code", &[code]);
        want("/verdict/confidence", &[self.confidence]);
        want("/verdict/at/netns_name", self.netns.as_slice());
        want("/verdict/at/device", self.devices);
        want("/verdict/at/stage", self.stage.as_slice());
        want("/verdict/cause/code", self.causes);
        if self.drop_reason.is_some_and(has_drop_reason) {
            want("/verdict/cause/drop_reason", self.drop_reason.as_slice());
        }
        want("/verdict/cause/icmp_fate", self.icmp_fate.as_slice());
        if self.request_unseen {
            want("/request/kind", &["unseen"]);
        }
        if let Some((function, first)) = self.function
            && first.is_reached()
        {
            let found = flow
                .pointer("/verdict/cause/function")
                .and_then(Value::as_str);
            if found.and_then(|found| found.split(['.', '+']).next()) != Some(function) {
                differences.push(format!(
                    "the freeing function is {found:?}, want {function}"
                ));
            }
        }
        let mtu = flow.pointer("/verdict/cause/mtu").and_then(Value::as_u64);
        if self.mtu.is_some() && mtu != self.mtu {
            differences.push(format!("the MTU is {mtu:?}, want {:?}", self.mtu));
        }
        for (path, words) in [
            ("/verdict/summary", self.says),
            ("/verdict/next", self.next),
        ] {
            let found = flow.pointer(path).and_then(Value::as_str).unwrap_or("null");
            if words.is_some_and(|words| !found.contains(words)) {
                differences.push(format!("{path} is {found:?}, want {words:?} in it"));
            }
        }
        let losses = flow.pointer("/losses").and_then(Value::as_array);
        if self.has_losses && losses.is_none_or(Vec::is_empty) {
            differences.push("no losses are told, and there were some".to_owned());
        }
        for sentence in ["/verdict/summary", "/verdict/next"] {
            let text = flow.pointer(sentence).and_then(Value::as_str);
            if sentence.ends_with("summary") && text.is_none_or(str::is_empty) {
                differences.push(format!("{sentence} says nothing"));
            }
        }
        differences
    }
}

/// What the three views must say of one flow.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Views {
    /// The whole kernel.
    pub full: Expected,
    /// node-b and its pod.
    pub server_node: Expected,
    /// node-a and its pod.
    pub client_node: Expected,
}

impl Views {
    /// A death on the client's node or in its pod.
    pub const fn on_the_clients_node(expected: Expected, server_node: Expected) -> Self {
        Self {
            full: expected,
            server_node,
            client_node: expected,
        }
    }

    /// A death on the server's node or in its pod.
    pub const fn on_the_servers_node(expected: Expected, client_node: Expected) -> Self {
        Self {
            full: expected,
            server_node: expected,
            client_node,
        }
    }

    /// The same in all three.
    pub const fn all(expected: Expected) -> Self {
        Self {
            full: expected,
            server_node: expected,
            client_node: expected,
        }
    }
}
