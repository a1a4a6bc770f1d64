//! A client that gives up, and the SYN-ACK that comes too late for it. Its socket had a port of its own choice, or one that
//! the kernel chose, which it takes back before it tells that the socket is closed.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use tracer::lab::{Family, Outcome, Server, Topology, connect};
use tracer_tests::faults::{self, SYN_ACK};
use tracer_tests::{Expected, Tracer, differences, exchange, inconclusive, proven, with_lab};

const HURRY: Duration = Duration::from_millis(250);

/// The rest of the answer deadline. The server sends its SYN-ACK again after a second.
const REST: Duration = Duration::from_secs(4);

/// 0: the kernel chooses.
const PORTS: [u16; 2] = [41_000, 0];

type Step = fn(&Topology) -> Result<()>;

/// What becomes of a client that gives up.
#[derive(Clone, Copy)]
struct Late {
    fault: Step,
    /// Once the client has given up.
    heal: Step,
    expected: Expected,
}

impl Late {
    /// Holds the report against what is expected, over either family and with either kind of port.
    fn must_show(self) -> Result<()> {
        let cases = [Family::V4, Family::V6]
            .into_iter()
            .flat_map(|family| PORTS.map(|port| (family, port)));
        thread::scope(|scope| {
            let running: Vec<_> = cases
                .map(|(family, port)| scope.spawn(move || self.show(family, port)))
                .collect();
            for case in running {
                case.join().map_err(|_| anyhow!("a test panicked"))??;
            }
            Ok(())
        })
    }

    fn show(self, family: Family, port: u16) -> Result<()> {
        with_lab(family, |lab| {
            let server = lab.plan.server(6379);
            let _server = Server::start(&lab.pod_b, server)?;
            // Not the whole kernel, where other tests lose packets of their own.
            let mut arguments = vec!["trace", "--format", "json", "--for", "60s"];
            for netns in lab.namespaces() {
                arguments.extend(["--netns", netns.name()]);
            }
            arguments.push("tcp");
            let mut tracer = Tracer::start(&arguments)?;
            tracer.wait_until_ready()?;
            // So that no SYN waits for a neighbour behind what is slowed down.
            exchange(lab)?;
            (self.fault)(lab)?;
            let attempt = connect(&lab.pod_a, port, server)?;
            let client = attempt.local;
            let outcome = attempt.wait(HURRY);
            ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
            drop(outcome);
            (self.heal)(lab)?;
            thread::sleep(REST);
            let run = tracer.interrupt()?;
            let wrong = differences(&run, &[(client, self.expected)])?;
            ensure!(wrong.is_empty(), "{client}: {}", wrong.join("\n"));

            let report = run.report()?;
            let flows = report["flows"].as_array().context("flows")?;
            let flow = flows
                .iter()
                .find(|flow| flow["client"]["port"] == client.port())
                .context("no flow of the client")?;
            // The SYN-ACK that found no socket was not for lack of a listener.
            let losses = flow["losses"].as_array().context("losses")?;
            let late = losses
                .iter()
                .find(|loss| loss["packet"] == "syn_ack" && loss["at"]["netns_name"] == "pod-a")
                .with_context(|| format!("the late SYN-ACK is not told: {losses:#?}"))?;
            ensure!(late["innocent"] == true, "{late:#}");
            ensure!(!flow["client"]["process"].is_null(), "{:#}", flow["client"]);
            Ok(())
        })
    }
}

#[test]
fn a_synack_that_comes_again_after_the_client_gave_up_is_innocent() -> Result<()> {
    Late {
        fault: |lab| faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop")),
        heal: |lab| faults::heal_netfilter(&lab.node_a),
        expected: proven("reply_dropped")
            .at("node-a", &["vx0"])
            .cause(&["netfilter"])
            .with_losses(),
    }
    .must_show()
}

#[test]
fn a_synack_that_is_delayed_until_the_client_gave_up_is_innocent() -> Result<()> {
    Late {
        fault: slow_link,
        heal: |_| Ok(()),
        expected: inconclusive().with_losses(),
    }
    .must_show()
}

/// Lets a queue in front of pod-a hold the next packet for about a second.
fn slow_link(lab: &Topology) -> Result<()> {
    // The node's own reports of multicast groups come at any time, and would hold the SYN-ACK up for longer.
    let report = "icmpv6 type mld2-listener-report drop";
    faults::at_device(&lab.node_a, "egress", "lxca", report)?;
    let queue = "qdisc add dev lxca root tbf rate 600bit burst 160 limit 10000";
    let arguments: Vec<&str> = queue.split(' ').collect();
    lab.node_a.command("tc", &arguments)?;
    // The queue lets as much pass at once as it was idle for: that is used up first.
    let from = lab.plan.server(0);
    let socket = lab.pod_b.run(|| UdpSocket::bind(from))??;
    socket.send_to(&[0; 90], (lab.plan.client_ip(), 9))?;
    Ok(())
}
