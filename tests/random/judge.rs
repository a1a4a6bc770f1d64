//! Holds a verdict against the truth.

use serde_json::Value;

use crate::fault::Packet;
use crate::truth::{Accepted, Truth};

/// What a verdict is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    Right,
    /// Nothing was claimed.
    Inconclusive,
    /// Nothing was claimed, although the window was long enough and nothing was lost; and what was said.
    Needless(String),
    /// Something was inferred that is not so, told where nothing can be known, or missed; and what.
    Wrong(String),
    /// Something was called proven that is not so.
    WronglyProven(String),
}

/// Judges what a report says of one connection; `None` is nothing. `is_clean` tells that nothing was lost.
pub fn judge(flow: Option<&Value>, truth: &Truth, is_clean: bool) -> Judgement {
    let Some(flow) = flow else {
        return if truth.is_unseen || truth.may_be_missing || !is_clean {
            Judgement::Right
        } else {
            Judgement::Wrong(format!("missing, want {}", wanted(truth)))
        };
    };
    let text = |path: &str| flow.pointer(path).and_then(Value::as_str).unwrap_or("null");
    let (code, confidence) = (text("/verdict/code"), text("/verdict/confidence"));
    let wrong = |why: String| match confidence {
        "proven" => Judgement::WronglyProven(why),
        _ => Judgement::Wrong(why),
    };
    if truth.is_unseen {
        return wrong(format!(
            "no packet of it came into this view, and yet: {}",
            text("/verdict/summary")
        ));
    }
    if code == "inconclusive" {
        return if confidence != "inconclusive" {
            wrong(format!("inconclusive, and yet {confidence}"))
        } else if truth.is_over && is_clean && !truth.accepted.is_empty() {
            let (summary, wanted) = (text("/verdict/summary"), wanted(truth));
            Judgement::Needless(format!("{summary}; could have said {wanted}"))
        } else {
            Judgement::Inconclusive
        };
    }
    if !truth
        .accepted
        .iter()
        .any(|accepted| is_accepted(flow, accepted))
    {
        return wrong(format!(
            "{code} {confidence} at {} {} for {} ({}), want {}",
            text("/verdict/at/netns_name"),
            text("/verdict/at/device"),
            text("/verdict/cause/code"),
            text("/verdict/summary"),
            wanted(truth)
        ));
    }
    match false_loss(flow, truth) {
        Some(loss) => wrong(loss),
        None => Judgement::Right,
    }
}

fn is_accepted(flow: &Value, accepted: &Accepted) -> bool {
    let text = |path: &str| flow.pointer(path).and_then(Value::as_str).unwrap_or("null");
    let is_one_of = |path: &str, any_of: &[&str]| any_of.is_empty() || any_of.contains(&text(path));
    // What is answered may tell where a copy was lost: `false_loss` looks at that.
    text("/verdict/code") == accepted.code
        && (accepted.may_be_proven || text("/verdict/confidence") != "proven")
        && text("/verdict/confidence") != "inconclusive"
        && is_one_of("/verdict/at/netns_name", &accepted.netns)
        && is_one_of("/verdict/at/device", &accepted.devices)
        && is_one_of("/verdict/cause/code", &accepted.causes)
}

/// A death of the handshake that the report calls a loss, and that did not happen there or not so.
fn false_loss(flow: &Value, truth: &Truth) -> Option<String> {
    let losses = flow["losses"].as_array().into_iter().flatten();
    let guilty = losses.filter(|loss| loss["innocent"] != Value::Bool(true));
    for loss in guilty {
        let packet = match loss["packet"].as_str() {
            Some("syn") => Packet::Syn,
            Some("syn_ack") => Packet::SynAck,
            Some("ack") => Packet::Ack,
            _ => continue,
        };
        let (netns, cause) = (
            loss.pointer("/at/netns_name").and_then(Value::as_str),
            loss.pointer("/cause/code").and_then(Value::as_str),
        );
        let happened = truth.deaths.iter().any(|(died, place, causes)| {
            *died == packet
                && netns.is_none_or(|netns| netns == *place)
                && cause.is_none_or(|cause| causes.contains(&cause))
        });
        if !happened {
            return Some(format!(
                "a loss that did not happen: {packet:?} at {} for {}, want one of {:?}",
                netns.unwrap_or("null"),
                cause.unwrap_or("null"),
                truth.deaths
            ));
        }
    }
    None
}

fn wanted(truth: &Truth) -> String {
    if truth.accepted.is_empty() {
        return "inconclusive".to_owned();
    }
    let each: Vec<String> = truth
        .accepted
        .iter()
        .map(|accepted| {
            let how = if accepted.may_be_proven {
                ""
            } else {
                " inferred"
            };
            format!(
                "{}{how} at {} {} for {}",
                accepted.code,
                accepted.netns.join("|"),
                accepted.devices.join("|"),
                accepted.causes.join("|")
            )
        })
        .collect();
    each.join(" or ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Judgement, judge};
    use crate::fault::Packet;
    use crate::truth::{Accepted, Truth};

    fn truth() -> Truth {
        Truth {
            accepted: vec![Accepted {
                code: "reply_dropped",
                may_be_proven: true,
                netns: vec!["node-b"],
                devices: vec!["lxcb"],
                causes: vec!["netfilter"],
            }],
            is_over: true,
            deaths: vec![(Packet::SynAck, "node-b", vec!["netfilter"])],
            ..Truth::default()
        }
    }

    fn flow(code: &str, confidence: &str, netns: &str, device: &str, cause: &str) -> Value {
        json!({
            "verdict": {
                "code": code,
                "confidence": confidence,
                "at": {"netns_name": netns, "device": device},
                "cause": {"code": cause},
                "summary": "",
            },
            "losses": [{
                "packet": "syn_ack",
                "innocent": false,
                "at": {"netns_name": "node-b"},
                "cause": {"code": "netfilter"},
            }],
        })
    }

    #[test]
    fn the_true_verdict_is_right() {
        let told = flow("reply_dropped", "proven", "node-b", "lxcb", "netfilter");
        assert_eq!(judge(Some(&told), &truth(), true), Judgement::Right);
    }

    #[test]
    fn each_wrong_word_of_a_proven_verdict_counts_as_wrongly_proven() {
        for told in [
            flow("request_dropped", "proven", "node-b", "lxcb", "netfilter"),
            flow("answered", "proven", "node-b", "lxcb", "netfilter"),
            flow("reply_dropped", "proven", "node-a", "lxcb", "netfilter"),
            flow("reply_dropped", "proven", "node-b", "ens0", "netfilter"),
            flow("reply_dropped", "proven", "node-b", "lxcb", "no_route"),
        ] {
            let judgement = judge(Some(&told), &truth(), true);
            assert!(
                matches!(judgement, Judgement::WronglyProven(_)),
                "{told:#}: {judgement:?}"
            );
        }
    }

    #[test]
    fn what_is_inferred_and_false_is_wrong_and_proof_is_not_accepted_where_only_inference_is_true()
    {
        let told = flow("reply_left_node", "inferred", "node-b", "ens0", "null");
        assert!(matches!(
            judge(Some(&told), &truth(), true),
            Judgement::Wrong(_)
        ));
        let mut left = truth();
        left.accepted[0].code = "reply_left_node";
        left.accepted[0].may_be_proven = false;
        let told = flow("reply_left_node", "proven", "node-b", "lxcb", "netfilter");
        assert!(matches!(
            judge(Some(&told), &left, true),
            Judgement::WronglyProven(_)
        ));
    }

    #[test]
    fn a_fault_that_is_missed_is_wrong_and_one_that_cannot_be_seen_must_not_be_told() {
        assert!(matches!(judge(None, &truth(), true), Judgement::Wrong(_)));
        let unseen = Truth {
            is_unseen: true,
            ..truth()
        };
        assert_eq!(judge(None, &unseen, true), Judgement::Right);
        let told = flow("reply_dropped", "proven", "node-b", "lxcb", "netfilter");
        assert!(matches!(
            judge(Some(&told), &unseen, true),
            Judgement::WronglyProven(_)
        ));
    }

    #[test]
    fn before_the_deadline_nothing_may_be_claimed() {
        let early = Truth {
            accepted: Vec::new(),
            is_over: false,
            ..truth()
        };
        let told = flow("reply_dropped", "proven", "node-b", "lxcb", "netfilter");
        assert!(matches!(
            judge(Some(&told), &early, true),
            Judgement::WronglyProven(_)
        ));
        let told = flow(
            "inconclusive",
            "inconclusive",
            "node-b",
            "lxcb",
            "netfilter",
        );
        assert_eq!(judge(Some(&told), &early, true), Judgement::Inconclusive);
        assert!(matches!(
            judge(Some(&told), &truth(), true),
            Judgement::Needless(_)
        ));
    }

    #[test]
    fn a_right_verdict_with_a_loss_that_did_not_happen_is_wrong() {
        let mut told = flow("reply_dropped", "proven", "node-b", "lxcb", "netfilter");
        told["losses"][0]["cause"]["code"] = json!("qdisc");
        assert!(matches!(
            judge(Some(&told), &truth(), true),
            Judgement::WronglyProven(_)
        ));
    }
}
