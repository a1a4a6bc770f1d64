//! What the live view counts, forgets, lists and draws, on hand-made flows and screens.

use std::net::SocketAddr;
use std::rc::Rc;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::input::{Effect, Pane, Ui};
use super::list::{DropSort, FlowSort, age};
use super::model::{Counts, DropCount, DropKind, FlowRow, Model, Snapshot};
use super::plain;
use super::view::{Title, draw};
use crate::analysis::Analysis;
use crate::event::{Death, DeviceId, NetnsId, SkbId, Symbol};
use crate::flow::{FiveTuple, Message, Point, Segment, Sighting, TcpFlags};
use crate::record::{CAPTURE_SCHEMA, Device, Header, Hook, HookState, Ledger, Record, View};
use crate::report::Flow;
use crate::report::tests::samples;

const MS: u64 = 1_000_000;
const NODE: NetnsId = NetnsId {
    inum: 0xf000_0001,
    cookie: 1,
};
const NIC: u32 = 2;
const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;

fn client(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn server() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 6379))
}

/// A node that sends over one NIC, all core hooks attached since 0.
fn node() -> Analysis {
    let hooks = ["net_dev_start_xmit", "netif_receive_skb", "kfree_skb"];
    let mut analysis = Analysis::new(Header {
        schema: CAPTURE_SCHEMA.to_owned(),
        tracer_version: String::new(),
        command: Vec::new(),
        hostname: String::new(),
        machine_id: String::new(),
        boot_id: String::new(),
        kernel: String::new(),
        arch: String::new(),
        filter: String::new(),
        view: View::Kernel,
        hooks: hooks
            .map(|name| Hook {
                name: name.to_owned(),
                kind: "tp_btf".to_owned(),
                state: HookState::Attached,
                reason: None,
            })
            .to_vec(),
        blind_spots: Vec::new(),
        tc_devices: Vec::new(),
        start_ns: 0,
    });
    analysis.push(&Record::Device(Box::new(Device {
        id: DeviceId {
            netns: NODE,
            ifindex: NIC,
        },
        netns_name: Some("node".to_owned()),
        name: "ens3".to_owned(),
        kind: "physical".to_owned(),
        mtu: 1500,
        up: true,
        mac: None,
        peer: None,
        master_ifindex: None,
        vni: None,
        udp_port: None,
        underlay_ifindex: None,
        underlay_netns: None,
        addrs: vec![client(0).ip()],
        removed: false,
    })));
    analysis
}

/// A segment between the client with this port and the server.
fn see(analysis: &mut Analysis, at_ms: u64, port: u16, flags: TcpFlags, point: Point) {
    let from_server = flags.has(SYN | ACK) || flags.has(TcpFlags::RST);
    let (src, dst) = if from_server {
        (server(), client(port))
    } else {
        (client(port), server())
    };
    let (seq, ack) = match (from_server, flags.has(SYN)) {
        (true, _) => (9_000, 1_001),
        (false, true) => (1_000, 0),
        (false, false) => (1_001, 9_001),
    };
    analysis.flows.push(Sighting {
        time_ns: at_ms * MS,
        cpu: 0,
        sequence: u32::try_from(at_ms).expect("a short story"),
        netns: Some(NODE),
        ifindex: Some(NIC),
        skb: SkbId(at_ms),
        point,
        packet_len: 60,
        skb_len: 74,
        inner_len: 60,
        gso_size: 0,
        dont_fragment: true,
        mark: 0,
        tuple: FiveTuple {
            protocol: 6,
            src,
            dst,
        },
        hop_limit: 64,
        message: Message::Tcp(Segment {
            seq,
            ack,
            flags,
            payload_len: 0,
            tsval: u32::try_from(at_ms).ok(),
        }),
        icmp: None,
        tunnels: Vec::new(),
        dst_mac: None,
    });
}

fn killed() -> Point {
    let symbol = |function: &str| Symbol {
        function: function.to_owned(),
        offset: 0x10,
    };
    Point::Drop(Box::new(Death {
        reason: Some("NETFILTER_DROP".to_owned()),
        location: symbol("nf_hook_slow"),
        callers: vec![symbol("ip_output")],
        result: None,
    }))
}

#[test]
fn a_request_waits_then_fails_then_is_forgotten_but_stays_on_the_list() {
    let (mut analysis, mut model) = (node(), Model::default());
    see(&mut analysis, 100, 40_000, SYN, Point::Xmit);

    let early = model.refresh(&mut analysis, 200 * MS);
    assert_eq!((early.counts.waiting, early.counts.faults), (1, 0));
    assert!(early.flows[0].waiting);
    assert_eq!(
        early.flows[0].flow.verdict.summary,
        "no answer yet, 100 ms after the request"
    );

    let late = model.refresh(&mut analysis, 5_000 * MS);
    assert_eq!((late.counts.waiting, late.counts.faults), (0, 1));
    assert_eq!(late.flows[0].id, early.flows[0].id);
    assert_eq!(late.flows[0].flow.verdict.code.name(), "request_left_node");
    assert_eq!(analysis.flows.len(), 1, "the client may still repeat it");

    let much_later = model.refresh(&mut analysis, 80_000 * MS);
    assert!(analysis.flows.is_empty());
    assert_eq!(much_later.counts, late.counts);
    assert_eq!(much_later.flows[0].id, late.flows[0].id);
    let again = model.refresh(&mut analysis, 81_000 * MS);
    assert_eq!(
        (again.counts, again.flows.len()),
        (late.counts, 1),
        "counted once"
    );
}

#[test]
fn an_answered_flow_is_counted_once_and_forgotten_even_if_it_goes_on() {
    let (mut analysis, mut model) = (node(), Model::default());
    see(&mut analysis, 100, 40_000, SYN, Point::Xmit);
    see(&mut analysis, 101, 40_000, SYN | ACK, Point::Receive);
    see(&mut analysis, 102, 40_000, ACK, Point::Xmit);
    let answered = Counts {
        answered: 1,
        ..Counts::default()
    };
    let first = model.refresh(&mut analysis, 500 * MS);
    assert_eq!((first.counts, first.flows.len()), (answered, 0));
    assert_eq!(analysis.flows.len(), 1);
    for second in 1..=12 {
        see(&mut analysis, second * 1_000, 40_000, ACK, Point::Xmit);
        let now = model.refresh(&mut analysis, second * 1_000 * MS + MS);
        assert_eq!(
            (now.counts, now.flows.len()),
            (answered, 0),
            "what comes later is no flow of its own"
        );
    }
    model.refresh(&mut analysis, 20_000 * MS);
    assert!(analysis.flows.is_empty());
}

#[test]
fn drops_are_counted_once_before_and_after_their_flow_is_over() {
    let (mut analysis, mut model) = (node(), Model::default());
    for (port, at_ms) in [(40_000, 100), (40_001, 200)] {
        see(&mut analysis, at_ms, port, SYN, killed());
        see(&mut analysis, at_ms + 1_000, port, SYN, killed());
    }
    let kind = DropKind {
        cause: "netfilter",
        reason: "NETFILTER_DROP".to_owned(),
        device: "ens3".to_owned(),
        netns: "node".to_owned(),
    };
    for now_ms in [5_000, 6_000, 90_000, 91_000] {
        let now = model.refresh(&mut analysis, now_ms * MS);
        let [(found, count)] = now.drops.as_slice() else {
            panic!("{:?}", now.drops)
        };
        assert_eq!((found, count.packets, now.counts.faults), (&kind, 4, 2));
    }
    assert!(analysis.flows.is_empty());
}

#[test]
fn a_refusal_is_told_apart_from_other_faults() {
    let (mut analysis, mut model) = (node(), Model::default());
    see(&mut analysis, 100, 40_000, SYN, Point::Xmit);
    see(
        &mut analysis,
        101,
        40_000,
        TcpFlags::RST | ACK,
        Point::Receive,
    );
    let now = model.refresh(&mut analysis, 200 * MS);
    assert_eq!((now.counts.refused, now.counts.faults), (1, 0));
    assert_eq!(now.flows[0].flow.verdict.code.name(), "refused");
}

#[test]
fn what_was_lost_is_told_and_spoils_verdicts() {
    let (mut analysis, mut model) = (node(), Model::default());
    see(&mut analysis, 100, 40_000, SYN, Point::Xmit);
    analysis.push(&Record::Ledger(Ledger {
        time_ns: 500 * MS,
        ring_full: 7,
        ..Ledger::default()
    }));
    let now = model.refresh(&mut analysis, 5_000 * MS);
    assert_eq!((now.lost, now.counts.inconclusive), (7, 1));
}

#[test]
fn the_history_is_bounded() {
    let (mut analysis, mut model) = (node(), Model::default());
    for port in 1..=600 {
        see(&mut analysis, u64::from(port), port, SYN, Point::Xmit);
    }
    assert_eq!(model.refresh(&mut analysis, 5_000 * MS).flows.len(), 600);
    let now = model.refresh(&mut analysis, 90_000 * MS);
    assert_eq!((now.flows.len(), now.counts.faults), (500, 600));
    assert!(analysis.flows.is_empty());
}

fn row(flow: Flow, first_ms: u64, waiting: bool) -> FlowRow {
    let socket = |port: Option<u16>, addr| SocketAddr::new(addr, port.unwrap_or(0));
    let tuple = FiveTuple {
        protocol: 6,
        src: socket(flow.client.port, flow.client.addr),
        dst: socket(flow.server.port, flow.server.addr),
    };
    FlowRow {
        id: (tuple.key(), Some(1)),
        waiting,
        first_ns: first_ms * MS,
        flow: Rc::new(flow),
    }
}

fn snapshot() -> Snapshot {
    let drop_of = |cause, reason: &str, device: &str, packets| {
        let kind = DropKind {
            cause,
            reason: reason.to_owned(),
            device: device.to_owned(),
            netns: "node-a".to_owned(),
        };
        let last = Some(samples::time(packets * 1_000));
        (kind, DropCount { packets, last })
    };
    Snapshot {
        now_ns: 200_000 * MS,
        flows: vec![
            row(samples::lost_in_underlay(), 1_000, false),
            row(samples::dropped_in_output(), 150_000, false),
            row(samples::refused(3), 190_000, false),
            row(samples::inconclusive(4), 199_000, true),
        ],
        drops: vec![
            drop_of("netfilter", "NETFILTER_DROP", "vx0", 12),
            drop_of("rp_filter", "IP_RPFILTER", "eth\x1b[2J0", 3),
        ],
        other_drops: 0,
        counts: Counts {
            waiting: 1,
            faults: 2,
            refused: 1,
            inconclusive: 0,
            answered: 240,
        },
        lost: 0,
    }
}

/// What is on a screen of this size.
fn screen(columns: u16, lines: u16, ui: &Ui, snapshot: &Snapshot) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    let title = Title {
        hostname: "worker1".to_owned(),
        filter: "port 6379".to_owned(),
        colour: true,
    };
    terminal
        .draw(|frame| draw(frame, &title, snapshot, Some(samples::time(0)), ui))
        .unwrap();
    terminal.backend().to_string()
}

fn press(ui: &mut Ui, snapshot: &Snapshot, codes: &[KeyCode]) {
    for code in codes {
        assert_eq!(
            ui.press(KeyEvent::new(*code, KeyModifiers::NONE), snapshot),
            Effect::Redraw,
            "{code:?}"
        );
    }
}

#[test]
fn screens() {
    let snapshot = snapshot();
    let mut ui = Ui::default();
    insta::assert_snapshot!("lists_80x24", screen(80, 24, &ui, &snapshot));
    insta::assert_snapshot!("lists_120x40", screen(120, 40, &ui, &snapshot));
    press(&mut ui, &snapshot, &[KeyCode::Down, KeyCode::Down]);
    press(&mut ui, &snapshot, &[KeyCode::Enter]);
    insta::assert_snapshot!("path_80x24", screen(80, 24, &ui, &snapshot));
    press(&mut ui, &snapshot, &[KeyCode::Char('p'), KeyCode::Esc]);
    press(
        &mut ui,
        &snapshot,
        &"/rp".chars().map(KeyCode::Char).collect::<Vec<_>>(),
    );
    insta::assert_snapshot!("paused_and_searching_80x24", screen(80, 24, &ui, &snapshot));
    insta::assert_snapshot!(
        "empty_80x24",
        screen(80, 24, &Ui::default(), &Snapshot::default())
    );
}

#[test]
fn no_size_and_no_name_breaks_the_screen() {
    let mut snapshot = snapshot();
    let mut hostile = samples::lost_in_underlay();
    let at = hostile.verdict.at.as_mut().unwrap();
    at.device = Some("\u{202e}\x1b]0;x\x07".to_owned());
    snapshot.flows.push(row(hostile, 5_000, false));
    let mut opened = Ui::default();
    press(&mut opened, &snapshot, &[KeyCode::End, KeyCode::Enter]);
    for ui in [Ui::default(), opened] {
        for (columns, lines) in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
            let text = screen(columns, lines, &ui, &snapshot);
            let harmful = |c: char| c != '\n' && crate::escape::is_harmful(c);
            assert!(!text.chars().any(harmful), "{text:?}");
        }
    }
}

#[test]
fn keys_sort_search_pause_and_open() {
    let snapshot = snapshot();
    let mut ui = Ui::default();
    let ports = |ui: &Ui| -> Vec<u16> {
        let rows = ui.flows(&snapshot);
        rows.iter().filter_map(|row| row.flow.client.port).collect()
    };
    let newest_first = ports(&ui);
    press(&mut ui, &snapshot, &[KeyCode::Char('r')]);
    let mut oldest_first = newest_first.clone();
    oldest_first.reverse();
    assert_eq!(ports(&ui), oldest_first);
    press(
        &mut ui,
        &snapshot,
        &[KeyCode::Char('r'), KeyCode::Char('s')],
    );
    assert_eq!(ui.flow_sort, FlowSort::State);
    assert_eq!(ports(&ui)[0], newest_first[0], "what waits comes first");

    press(&mut ui, &snapshot, &[KeyCode::Tab, KeyCode::Char('s')]);
    assert_eq!((ui.pane, ui.drop_sort), (Pane::Drops, DropSort::Cause));
    press(&mut ui, &snapshot, &[KeyCode::Tab, KeyCode::Char('/')]);
    let refused: Vec<KeyCode> = "Refusedx".chars().map(KeyCode::Char).collect();
    press(&mut ui, &snapshot, &refused);
    assert!(ports(&ui).is_empty());
    press(&mut ui, &snapshot, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!(ports(&ui).len(), 1, "case does not matter");
    press(&mut ui, &snapshot, &[KeyCode::Enter]);
    let code = |ui: &Ui| {
        ui.opened
            .as_ref()
            .map(|opened| opened.row.flow.verdict.code.name())
    };
    assert_eq!(code(&ui), Some("refused"));
    press(&mut ui, &snapshot, &[KeyCode::Esc, KeyCode::Esc]);
    assert_eq!((code(&ui), ports(&ui).len()), (None, 4));

    press(&mut ui, &snapshot, &[KeyCode::Char(' ')]);
    assert!(ui.paused);
}

#[test]
fn keys_that_end_or_do_nothing() {
    let snapshot = snapshot();
    let mut ui = Ui::default();
    let mut effect = |code, modifiers| ui.press(KeyEvent::new(code, modifiers), &snapshot);
    assert_eq!(effect(KeyCode::F(5), KeyModifiers::NONE), Effect::Nothing);
    assert_eq!(
        effect(KeyCode::Char('c'), KeyModifiers::CONTROL),
        Effect::Quit
    );
    assert_eq!(
        effect(KeyCode::Char('/'), KeyModifiers::NONE),
        Effect::Redraw
    );
    assert_eq!(
        effect(KeyCode::Char('q'), KeyModifiers::NONE),
        Effect::Redraw
    );
    assert_eq!(
        effect(KeyCode::Char('\u{202e}'), KeyModifiers::NONE),
        Effect::Nothing
    );
    assert_eq!(
        effect(KeyCode::Char('c'), KeyModifiers::CONTROL),
        Effect::Quit
    );
    assert_eq!(effect(KeyCode::Enter, KeyModifiers::NONE), Effect::Redraw);
    assert_eq!(effect(KeyCode::Char('q'), KeyModifiers::NONE), Effect::Quit);
}

#[test]
fn the_selection_stays_with_its_flow() {
    let mut snapshot = snapshot();
    let mut ui = Ui::default();
    press(&mut ui, &snapshot, &[KeyCode::Down]);
    let selected = |ui: &Ui, snapshot: &Snapshot| {
        let rows = ui.flows(snapshot);
        rows[ui.flow_index(&rows)].id
    };
    let before = selected(&ui, &snapshot);
    let mut newer = samples::inconclusive(9);
    newer.client.port = Some(50_000);
    snapshot.flows.push(row(newer, 199_500, true));
    assert_eq!(selected(&ui, &snapshot), before);
}

#[test]
fn lines_for_a_pipe() {
    let mut text = Vec::new();
    plain::write(&snapshot(), Some(samples::time(0)), &mut text).unwrap();
    insta::assert_snapshot!("plain", String::from_utf8(text).unwrap());
}

#[test]
fn ages_stay_short() {
    let second = 1_000_000_000;
    for (seconds, words) in [
        (0, "0s"),
        (99, "99s"),
        (100, "1m"),
        (5_999, "99m"),
        (6_000, "1h"),
        (400_000, "4d"),
    ] {
        assert_eq!(age(seconds * second), words);
    }
}
