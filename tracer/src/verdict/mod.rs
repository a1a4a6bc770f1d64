//! Says what became of a flow, and never more than its sightings prove. Reads no clock and does no I/O: the same
//! flows and the same end of the window give the same verdicts.
//!
//! `handshake` and, once it is complete, `data` decide on TCP, and `datagram` on what has no connections; `diagnosis` names the cause of a death, `words` puts both into a sentence.

mod data;
mod datagram;
pub mod diagnosis;
mod egress;
mod explain;
mod finding;
mod handshake;
mod large;
mod losses;
mod lost;
mod mend;
pub mod question;
mod refusal;
mod silence;
pub mod size;
#[cfg(test)]
mod tests;
pub mod told;
mod tun;
mod wireguard;
mod words;

use crate::analysis::Analysis;
use crate::codes::{Confidence, PacketKind, Stage, VerdictCode};
use crate::devices::Devices;
use crate::event::TcpState;
use crate::flow::Sighting;
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow;
use crate::record::{HookState, View};

pub use diagnosis::Diagnosis;
pub use losses::Loss;
pub(crate) use words::duration;

/// TCP's answer deadline after the first request: the client's second retransmission is 3 s after it.
pub const ANSWER_AFTER_FIRST_NS: u64 = 3_500_000_000;
/// The answer deadline after the latest request.
pub const ANSWER_AFTER_LATEST_NS: u64 = 500_000_000;

/// UDP's answer deadline after the request.
pub const UDP_ANSWER_AFTER_NS: u64 = 5_000_000_000;
/// ICMP echo's answer deadline after the request.
pub const ECHO_ANSWER_AFTER_NS: u64 = 1_000_000_000;

/// The hooks without which absence means nothing.
const CORE_HOOKS: [&str; 3] = ["net_dev_start_xmit", "netif_receive_skb", "kfree_skb"];

/// The conclusion about one flow.
#[derive(Debug)]
pub struct Judgement<'a> {
    /// What happened.
    pub code: VerdictCode,
    /// How it is known.
    pub confidence: Confidence,
    /// One sentence without a full stop; the names in it are untrusted.
    pub summary: String,
    /// What to do now.
    pub next: Option<String>,
    /// Where it happened.
    pub at: Option<Place<'a>>,
    /// Why.
    pub cause: Option<Diagnosis>,
    /// The packets that died, those that mean nothing included.
    pub losses: Vec<Loss<'a>>,
    /// No later event can change it for the better: `--until-verdict` may stop here.
    pub is_final: bool,
}

/// Where something happened.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The sighting.
    pub sighting: &'a Sighting,
    /// Where in the stack.
    pub stage: Stage,
}

/// Judges a flow.
pub fn judge<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Judgement<'a> {
    let mut judgement = if flow.is_tcp() {
        handshake::judge(flow, scene)
    } else {
        datagram::judge(flow, scene)
    };
    silence::suspect(&mut judgement, scene);
    large::explain(&mut judgement, flow, scene);
    tun::name_holder(&mut judgement, scene);
    judgement
}

/// What a flow is judged by, besides itself.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// Everything that the records said.
    pub analysis: &'a Analysis,
    /// The end of the window, or now.
    pub now_ns: u64,
}

impl<'a> Scene<'a> {
    /// The devices.
    pub fn devices(&self) -> &'a Devices {
        &self.analysis.devices
    }

    /// The watched namespaces.
    pub fn view(&self) -> &'a View {
        &self.analysis.header.view
    }

    /// Whether a flow belongs into the report. A socket may speak of a flow none of whose packets were seen: that is
    /// no flow. And a packet that tells no namespace is never filtered out (the deciding drop may be one), so a flow
    /// of which nothing else was seen may be anybody's, and is not told where only some namespaces are watched. The
    /// datagrams of a tunnel are no flow either, though they look like one until the tunnel's device is known.
    pub fn shows(&self, flow: &Flow<'_>) -> bool {
        let everything = *self.view() == View::Kernel;
        let is_of_a_tunnel = !flow.is_tcp() && self.analysis.is_tunnel_port(flow.server.port());
        !is_of_a_tunnel
            && flow
                .sightings()
                .any(|sighting| everything || sighting.netns.is_some())
    }

    /// What became of a transmission.
    pub fn end<'f>(&self, transmission: &Transmission<'f>) -> End<'f> {
        transmission.end(self.devices(), self.view())
    }

    /// The transmission that came furthest, ties to the latest; but one that merely was not seen again (it may still
    /// wait in a queue) says less than one whose end is known.
    pub fn furthest<'t, 'f>(
        &self,
        transmissions: &'t [Transmission<'f>],
    ) -> Option<&'t Transmission<'f>> {
        transmissions.iter().max_by_key(|transmission| {
            let end_is_known = !matches!(self.end(transmission), End::Vanished(_));
            (
                transmission.distance(),
                end_is_known,
                transmission.first().order(),
            )
        })
    }

    /// Whether a packet of the flow died on the way on which others of its direction arrived or left, by their skbs: a copy
    /// that was made for somebody else has another skb, and another way.
    fn is_on_the_way(&self, dead: &Sighting, flow: &Flow<'_>) -> bool {
        let from_client = flow.is_from_client(dead);
        let parts: &[&Vec<Transmission<'_>>] = if from_client {
            &[&flow.request, &flow.ack]
        } else {
            &[&flow.reply]
        };
        let passes = |transmission: &&Transmission<'_>| {
            let end = self.end(transmission);
            let skb = end.sighting().skb;
            !matches!(end, End::Died(_))
                && transmission.sightings().iter().any(|seen| {
                    seen.skb == skb
                        && seen.netns.is_some()
                        && seen.netns == dead.netns
                        && seen.ifindex == dead.ifindex
                })
        };
        parts
            .iter()
            .flat_map(|part| part.iter())
            .any(|each| passes(&each))
    }

    /// Whether a hook is attached.
    fn watches(&self, name: &str) -> bool {
        let mut hooks = self.analysis.header.hooks.iter();
        hooks.any(|hook| hook.name == name && hook.state == HookState::Attached)
    }

    /// A core hook that is not attached: absence then proves nothing.
    fn missing_hook(&self) -> Option<&'static str> {
        CORE_HOOKS.into_iter().find(|name| !self.watches(name))
    }

    /// When a flow's request must have been answered.
    fn deadline_ns(flow: &Flow<'_>) -> u64 {
        let first = flow
            .request
            .first()
            .map_or(0, |request| request.first().time_ns);
        let latest = flow
            .request
            .last()
            .map_or(0, |request| request.first().time_ns);
        let after_first_ns = match flow.request_kind() {
            PacketKind::Syn => ANSWER_AFTER_FIRST_NS,
            PacketKind::EchoRequest => ECHO_ANSWER_AFTER_NS,
            _ => UDP_ANSWER_AFTER_NS,
        };
        // The times may be a hostile capture's.
        first
            .saturating_add(after_first_ns)
            .max(latest.saturating_add(ANSWER_AFTER_LATEST_NS))
    }
}

/// When the client's socket was closed without ever being established.
fn gave_up_at(flow: &Flow<'_>) -> Option<u64> {
    if flow.client_state_at(TcpState::Established).is_some() {
        return None;
    }
    flow.client_state_at(TcpState::Close)
}
