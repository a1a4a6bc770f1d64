//! Golden reports: what a person sees.

pub(crate) mod samples;

use samples::{
    answered, answered_late, dropped_in_output, flow, inconclusive, lost_in_underlay, refused,
    report, time, watched_in_a_netns,
};

use super::{Format, HookState, Report, StoppedBy, Style, VerdictCode, Worst, exit_code, write};
use crate::exit;

fn rendered(report: &Report, format: Format, style: Style) -> String {
    let mut output = Vec::new();
    write(report, format, style, &mut output).expect("memory takes everything");
    String::from_utf8(output).expect("reports are UTF-8")
}

fn text(report: &Report) -> String {
    let style = Style {
        columns: 100,
        colour: false,
    };
    rendered(report, Format::Text, style)
}

#[test]
fn lost_in_the_underlay() {
    let report = report(vec![lost_in_underlay()]);
    insta::assert_snapshot!(text(&report));
    insta::assert_snapshot!(
        "lost_in_the_underlay_markdown",
        rendered(&report, Format::Markdown, Style::PLAIN)
    );
    insta::assert_snapshot!(
        "lost_in_the_underlay_html",
        rendered(&report, Format::Html, Style::PLAIN)
    );
    insta::assert_snapshot!(
        "lost_in_the_underlay_json",
        rendered(&report, Format::Json, Style::PLAIN)
    );
    assert_eq!(exit_code(&report), exit::FAULT);
}

#[test]
fn dropped_in_the_servers_output_chain() {
    insta::assert_snapshot!(text(&report(vec![dropped_in_output()])));
}

#[test]
fn several_faults_and_their_likes_on_a_narrow_terminal() {
    let mut flows = vec![
        refused(3),
        answered(4),
        lost_in_underlay(),
        dropped_in_output(),
        inconclusive(5),
    ];
    flows.extend((6..14).map(refused));
    let style = Style {
        columns: 80,
        colour: false,
    };
    insta::assert_snapshot!(rendered(&report(flows), Format::Text, style));
}

#[test]
fn two_hundred_healthy_flows() {
    let mut flows: Vec<_> = (1..=199).map(answered).collect();
    flows.push(answered_late(200));
    let report = report(flows);
    insta::assert_snapshot!(text(&report));
    assert_eq!(exit_code(&report), exit::OK);
}

#[test]
fn no_packet_matched() {
    let mut report = report(Vec::new());
    report.observer.filter = Some("src host 10.244.190.40 and port 6379".to_owned());
    watched_in_a_netns(&mut report);
    insta::assert_snapshot!(text(&report));
    assert_eq!(exit_code(&report), exit::INCONCLUSIVE);
}

#[test]
fn a_dirty_ledger_and_a_cut_capture() {
    let mut report = report(vec![inconclusive(1)]);
    report.ledger.ring_full = 512;
    report.ledger.undecodable = 1;
    report.ledger.clean = false;
    report.window.stopped_by = StoppedBy::Cut;
    report.observer.hooks[2].state = HookState::Failed;
    report.observer.hooks[2].reason = Some("the kernel is locked down".to_owned());
    insta::assert_snapshot!(text(&report));
    assert_eq!(exit_code(&report), exit::INCONCLUSIVE);
}

#[test]
fn colour_marks_and_changes_nothing_else() {
    let report = report(vec![lost_in_underlay(), refused(2), answered(3)]);
    let colour = Style {
        columns: 100,
        colour: true,
    };
    let coloured = rendered(&report, Format::Text, colour);
    assert!(coloured.contains("\u{1b}["));
    assert_eq!(
        anstream::adapter::strip_str(&coloured).to_string(),
        text(&report)
    );
}

#[test]
fn a_name_cannot_write_into_the_report() {
    let mut flow = lost_in_underlay();
    let evil = "x\n\u{1b}[2Jproven \u{202e}`<b>|";
    flow.server.process.as_mut().expect("it has one").comm = evil.to_owned();
    flow.server.netns_name = Some(evil.to_owned());
    flow.server.pod = Some(evil.to_owned());
    flow.server.container.as_mut().expect("it has one").id = evil.to_owned();
    flow.verdict.summary = evil.to_owned();
    flow.verdict.next = Some(evil.to_owned());
    for hop in &mut flow.reply.path {
        hop.device = Some(evil.to_owned());
        hop.netns_name = Some(evil.to_owned());
    }
    let mut report = report(vec![flow]);
    let lines = |text: &str| text.lines().count();
    let honest = lines(&text(&super::tests::report(vec![lost_in_underlay()])));
    report.node.hostname = evil.to_owned();
    report.observer.blind_spots[0].summary = evil.to_owned();
    for format in [Format::Text, Format::Markdown, Format::Json, Format::Html] {
        let output = rendered(&report, format, Style::PLAIN);
        let harmful: Vec<char> = output
            .chars()
            .filter(|c| *c != '\n' && crate::escape::is_harmful(*c))
            .collect();
        assert_eq!(harmful, [], "{format:?}");
        assert!(!output.contains("\nproven"), "{format:?}");
        if format == Format::Html {
            assert!(!output.contains("<b>"));
        }
    }
    assert!(
        lines(&text(&report)) <= honest + 6,
        "only wrapping may add lines:\n{}",
        text(&report)
    );
}

#[test]
fn what_is_written_is_read_back() {
    let report = report(vec![
        lost_in_underlay(),
        dropped_in_output(),
        refused(3),
        inconclusive(4),
    ]);
    let json = rendered(&report, Format::Json, Style::PLAIN);
    assert_eq!(
        serde_json::from_str::<Report>(&json).expect("our own JSON"),
        report
    );
}

#[test]
fn the_worst_is_proven_then_a_reply_then_recent() {
    let worst = |flows| {
        report(flows)
            .summary
            .worst
            .map(|Worst { flow_id, .. }| flow_id)
    };
    assert_eq!(worst(vec![answered(1), inconclusive(2)]), None);
    assert_eq!(
        worst(vec![lost_in_underlay(), dropped_in_output(), refused(3)]),
        Some(2)
    );
    assert_eq!(
        worst(vec![lost_in_underlay(), refused(3)]),
        Some(3),
        "proven before inferred"
    );
    let mut later = refused(4);
    later.request.last = Some(time(9_000));
    assert_eq!(
        worst(vec![refused(3), later, refused(5)]),
        Some(4),
        "the most recent"
    );
}

#[test]
fn exit_codes() {
    let one_way = || {
        let mut flow = answered(9);
        flow.verdict.code = VerdictCode::OneWay;
        flow
    };
    assert_eq!(exit_code(&report(vec![answered(1), one_way()])), exit::OK);
    assert_eq!(
        exit_code(&report(vec![answered(1), inconclusive(2)])),
        exit::INCONCLUSIVE
    );
    assert_eq!(
        exit_code(&report(vec![inconclusive(1), refused(2)])),
        exit::FAULT,
        "10 wins over 11"
    );
    let refused = flow(1, refused(1).verdict);
    assert_eq!(exit_code(&report(vec![refused])), exit::FAULT);
}

#[test]
fn the_schema_names_the_contract() {
    let schema = serde_json::to_value(super::report_schema()).expect("a schema is JSON");
    for (name, fields) in [
        ("Window", &["start", "end", "duration_ns", "stopped_by"][..]),
        (
            "Hop",
            &[
                "time",
                "stage",
                "device",
                "ifindex",
                "netns",
                "netns_name",
                "function",
                "len",
                "tunnel",
                "outer",
                "mark",
            ],
        ),
        (
            "Cause",
            &[
                "code",
                "drop_reason",
                "function",
                "callers",
                "detail",
                "evidence",
                "packet_len",
                "mtu",
                "gso",
                "dont_fragment",
                "icmp_sent",
                "icmp_delivered",
            ],
        ),
        (
            "Flow",
            &[
                "id",
                "protocol",
                "client",
                "server",
                "translations",
                "tunnels",
                "request",
                "reply",
                "ack",
                "resets",
                "retransmits",
                "losses",
                "verdict",
            ],
        ),
    ] {
        for field in fields {
            assert!(
                schema["$defs"][name]["properties"][field].is_object(),
                "{name}.{field}"
            );
        }
    }
    let capture = serde_json::to_value(super::capture_schema()).expect("a schema is JSON");
    assert_eq!(
        capture["oneOf"].as_array().map(Vec::len),
        Some(7),
        "one for each kind of record"
    );
}
