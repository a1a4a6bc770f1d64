//! The large-packet family: says of a packet that was too big why no ICMP error helped and what mends it; recognises that
//! only large packets are lost; and notes that a flow healed itself.

use super::diagnosis::{Diagnosis, Evidence};
use super::losses::Loss;
use super::told::{self, Told};
use super::{Judgement, Place, Scene, mend, words};
use crate::codes::{CauseCode, IcmpFate, Stage, VerdictCode};
use crate::flow::pairing::Flow;
use crate::flow::{Point, Sighting, TcpFlags};

/// What is smaller than this passes wherever anything does: an IPv6 link takes at least 1280 bytes, IPv4 over the tunnels
/// that people stack comes down to little less.
pub(super) const LARGE_BYTES: u32 = 1_000;

/// Says more of a verdict whose cause is a packet's size.
pub(super) fn explain<'a>(judgement: &mut Judgement<'a>, flow: &Flow<'a>, scene: &Scene<'_>) {
    if judgement.code == VerdictCode::Answered {
        healed(judgement, flow, scene);
        return;
    }
    let Some((cause, place)) = judgement.cause.as_mut().zip(judgement.at) else {
        return;
    };
    if cause.code != CauseCode::Mtu || judgement.code == VerdictCode::LargePacketsLost {
        return;
    }
    let told = Told::of(flow, place.sighting, scene);
    let sentence = Sentence {
        told: &told,
        packet: place.sighting,
        scene,
    };
    judgement.summary = format!("{}; {}", judgement.summary, sentence.in_short());
    let detail = sentence.in_full();
    cause.detail = Some(match cause.detail.take() {
        Some(known) => format!("{known}; {detail}"),
        None => detail,
    });
    cause.evidence.extend(sentence.evidence());
    if judgement.code.is_fault() {
        judgement.next = mend::command(flow, place, &told, scene).or(judgement.next.take());
    }
}

/// Tells of a flow that goes on what it took: how many packets were too big, and what made its sender send smaller ones.
fn healed<'a>(judgement: &mut Judgement<'a>, flow: &Flow<'a>, scene: &Scene<'_>) {
    let too_big = |loss: &&Loss<'_>| loss.diagnosis.code == CauseCode::Mtu && !loss.innocent;
    let mut deaths = judgement.losses.iter().filter(too_big);
    let first = deaths.next().map(|loss| (loss.sighting, &loss.diagnosis));
    let count = deaths.count() + 1;
    let note = if let Some((dead, diagnosis)) = first {
        let told = Told::of(flow, dead, scene);
        let packets = match count {
            1 => "one packet was killed".to_owned(),
            _ => format!("{count} packets were killed, the first"),
        };
        format!(
            "{packets} {} {}, and {}",
            scene.place_words(dead),
            diagnosis.phrase,
            recovery(&told, dead, flow)
        )
    } else {
        // Somebody out of view says that packets were too big.
        let errors = flow.errors.iter().chain(&flow.errors_back);
        let mut too_big = errors.filter_map(|seen| {
            let icmp = seen.icmp.filter(|icmp| icmp.is_too_big())?;
            Some((*seen, icmp))
        });
        let Some((error, icmp)) = too_big.next() else {
            return;
        };
        let told = Told::of(flow, error, scene);
        let takes = icmp.mtu.map_or_else(String::new, |mtu| {
            format!(", whose way on takes {mtu} bytes")
        });
        format!(
            "{} said by ICMP that packets are too big{takes}, and {}",
            icmp.from,
            recovery(&told, error, flow)
        )
    };
    // A single death may have been told already.
    if let Some((_, diagnosis)) = first
        && let Some(at) = judgement.summary.find(&diagnosis.phrase)
        && let Some(known) = judgement.summary[..at].rfind("; one ")
    {
        judgement.summary.truncate(known);
    }
    judgement.summary = format!("{}; {note}", judgement.summary);
}

/// What made a sender get through after a packet of its own was too big.
fn recovery(told: &Told<'_>, packet: &Sighting, flow: &Flow<'_>) -> String {
    let takes = told
        .mtu
        .map_or_else(String::new, |mtu| format!(" of at most {mtu} bytes"));
    let got_through = told.fate == IcmpFate::ActedUpon || is_acknowledged(packet, flow);
    match (told.fate.is_delivered(), got_through) {
        (true, true) => format!(
            "ICMP told the sender, which got through with packets{takes} (path MTU discovery)"
        ),
        (true, false) => "ICMP told the sender".to_owned(),
        (false, true) => {
            "the sender got through with smaller packets, though no ICMP told it".to_owned()
        }
        (false, false) => "no ICMP told the sender".to_owned(),
    }
}

/// Whether the other end has the first byte of a TCP segment, as far as its packets that did not die say so.
fn is_acknowledged(packet: &Sighting, flow: &Flow<'_>) -> bool {
    let seq = packet.segment().seq;
    packet.segment().payload_len > 0
        && flow.sightings().any(|seen| {
            let segment = seen.segment();
            seen.icmp.is_none()
                && !matches!(seen.point, Point::Drop(_) | Point::Refused(_))
                && flow.is_from_client(seen) != flow.is_from_client(packet)
                && segment.flags.has(TcpFlags::ACK)
                && segment.ack.wrapping_sub(seq).cast_signed() > 0
        })
}

/// What is said of the errors about a packet.
struct Sentence<'s, 'a> {
    told: &'s Told<'a>,
    packet: &'s Sighting,
    scene: &'s Scene<'s>,
}

impl Sentence<'_, '_> {
    /// To end the sentence of the verdict.
    fn in_short(&self) -> String {
        let sender = self.packet.tuple.src.ip();
        match self.told.fate {
            IcmpFate::LinkLayer => "no ICMP can say so: it died below IP".to_owned(),
            IcmpFate::TunnelEnd => match self.packet.tunnels.first() {
                Some(tunnel) => format!(
                    "ICMP tells the tunnel's end {}, not the sender {sender}",
                    tunnel.outer_src
                ),
                None => "ICMP tells the tunnel's end, not the sender".to_owned(),
            },
            IcmpFate::NoRouteBack => {
                format!("no ICMP could say so: there is no route back to {sender}")
            }
            IcmpFate::NotSent => format!("no ICMP to {sender} was seen"),
            IcmpFate::Dropped => match self.told.seen {
                Some((_, dead)) => {
                    let phrase = self.scene.diagnose(dead).map(|cause| cause.phrase);
                    format!(
                        "the ICMP that says so was killed {} {}",
                        self.scene.place_words(dead),
                        phrase.unwrap_or_default()
                    )
                }
                None => "the ICMP that says so was killed".to_owned(),
            },
            IcmpFate::LeftNode => format!(
                "the ICMP that says so left this node{}",
                self.told.seen.map_or_else(String::new, |(_, at)| format!(
                    " {}",
                    self.scene.place_words(at)
                ))
            ),
            IcmpFate::NotDelivered => "the ICMP that says so was not seen to arrive".to_owned(),
            IcmpFate::Delivered => "ICMP told the sender".to_owned(),
            IcmpFate::Ignored => {
                "ICMP told the sender, which goes on sending packets as large".to_owned()
            }
            IcmpFate::ActedUpon => "ICMP told the sender, which sent smaller ones then".to_owned(),
        }
    }

    /// For the cause's detail: why.
    fn in_full(&self) -> String {
        let sender = self.packet.tuple.src.ip();
        let device = self.scene.device_name(self.packet).unwrap_or("that device");
        match self.told.fate {
            IcmpFate::LinkLayer => format!(
                "it was measured as it was handed over below IP, where nobody is told; a frame may be four bytes longer there, for a VLAN tag, and what is still to be cut into segments is not measured, so that {} may go on",
                if self.packet.segment().payload_len > 0 { "some of the transfer" } else { "larger ones" }
            ),
            IcmpFate::TunnelEnd => format!(
                "it died inside the tunnel, and the kernel tells the source of the outer header; {sender} hears of it only if the tunnel's end passes it on"
            ),
            IcmpFate::NoRouteBack => match told::route_back(self.packet, self.scene) {
                Some(route) => format!(
                    "the kernel makes an ICMP error only where it has a route to its receiver, and for {sender} it found {}",
                    self.scene.route_words(route)
                ),
                None => format!("there is no route back to {sender}"),
            },
            IcmpFate::NotSent => {
                "IP tells the sender as a rule, but not of fragments after the first, and not where the error's own way begins with a drop that has no event".to_owned()
            }
            IcmpFate::Dropped | IcmpFate::LeftNode | IcmpFate::NotDelivered => self.way(),
            IcmpFate::Delivered | IcmpFate::ActedUpon => {
                format!("{}; the kernel needs no more than one", self.way())
            }
            IcmpFate::Ignored => format!(
                "{}; a route with a locked MTU, net.ipv4.ip_no_pmtu_disc, or a socket that sets DF by itself (IP_PMTUDISC_PROBE) ignores it; seen {device}",
                self.way()
            ),
        }
    }

    /// Which way the errors went.
    fn way(&self) -> String {
        let Some((first, last)) = self.told.seen else {
            return "no ICMP error was seen".to_owned();
        };
        let from = first.icmp.map(|icmp| icmp.from.to_string());
        let takes = self
            .told
            .mtu
            .map_or_else(String::new, |mtu| format!(" (MTU {mtu})"));
        format!(
            "{} ICMP error{} by {}{takes}, first seen {}, last {}",
            self.told.count,
            if self.told.count == 1 { "" } else { "s" },
            from.unwrap_or_default(),
            self.scene.place_words(first),
            self.scene.place_words(last),
        )
    }

    fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = Vec::new();
        if let Some((first, last)) = self.told.seen {
            let what = first.icmp.map_or("too big", |icmp| icmp.words());
            let says = self
                .told
                .mtu
                .map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
            evidence.push(Evidence::Event {
                time_ns: first.time_ns,
                summary: format!(
                    "ICMP {what}{says}, first seen {}",
                    self.scene.place_words(first)
                ),
            });
            match &last.point {
                Point::Drop(_) | Point::Refused(_) => {
                    evidence.extend(self.scene.diagnose(last).map(|cause| Evidence::Event {
                        time_ns: last.time_ns,
                        summary: format!(
                            "it was killed {} {}",
                            self.scene.place_words(last),
                            cause.phrase
                        ),
                    }));
                }
                _ if last.order() != first.order() => evidence.push(Evidence::Event {
                    time_ns: last.time_ns,
                    summary: format!("it was last seen {}", self.scene.place_words(last)),
                }),
                _ => {}
            }
        }
        if self.told.fate == IcmpFate::NoRouteBack {
            let back = self.scene.analysis.answers.iter().find(|fact| {
                matches!(fact, crate::fact::Fact::Route(route)
                    if told::route_back(self.packet, self.scene).is_some_and(|back| std::ptr::eq(back, route.as_ref())))
            });
            evidence.extend(back.cloned().map(Evidence::Fact));
        }
        evidence
    }
}

/// A cause for which there is no event: large packets are not acknowledged, and small ones are.
pub(super) fn suspicion(at: &Sighting, stage: Stage, passed: u32) -> Diagnosis {
    let len = at.segment_len();
    Diagnosis {
        code: CauseCode::Mtu,
        stage,
        phrase: String::new(),
        detail: Some(format!(
            "packets of up to {passed} bytes were acknowledged, and none of {len}; nothing here was seen to drop them"
        )),
        evidence: vec![Evidence::Event {
            time_ns: at.time_ns,
            summary: format!("the last try, of {len} bytes"),
        }],
    }
}

/// What an ICMP error says of a packet whose death was not seen.
pub(super) fn said_by_icmp(error: &Sighting, stage: Stage) -> Option<Diagnosis> {
    let icmp = error.icmp?;
    let takes = icmp
        .mtu
        .map_or_else(|| "less".to_owned(), |mtu| format!("{mtu} bytes"));
    Some(Diagnosis {
        code: CauseCode::Mtu,
        stage,
        phrase: format!("{} says by ICMP that its way on takes {takes}", icmp.from),
        detail: None,
        evidence: Vec::new(),
    })
}

/// "1450 bytes", and how many more the tunnels add where it was seen.
pub(super) fn size_words(at: &Sighting) -> String {
    let own = at.segment_len();
    let around = at.wire_len().saturating_sub(own);
    if around > 0 {
        format!("{own} bytes (and {around} of tunnel headers)")
    } else {
        format!("{own} bytes")
    }
}

/// The sentence of the inferred form.
pub(super) fn summary(
    at: Place<'_>,
    who: &str,
    fate: &str,
    copies: usize,
    tried_for_ns: u64,
    passed: u32,
    scene: &Scene<'_>,
) -> String {
    format!(
        "large packets lost: {} from the {who} {fate} {}, were sent {} in {} and never acknowledged, while up to {passed} bytes were; nothing here dropped them",
        size_words(at.sighting),
        scene.place_words(at.sighting),
        words::times(copies),
        words::duration(tried_for_ns),
    )
}
