//! Traces that start too late to see the request, and a port that is used again.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tracer::lab::{Outcome, Server, connect, listen};
use tracer_tests::faults::{self, SYN_ACK};
use tracer_tests::{Observers, Views, both, inconclusive, inferred, with_lab};

const SOON: Duration = Duration::from_secs(3);

/// The server sends its SYN-ACK again 1, 3, 7, 15 and 31 s after the SYN.
const SYN_ACK_AGAIN_WITHIN: Duration = Duration::from_secs(35);

fn echo_once(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"ping")?;
    let mut back = [0; 4];
    stream.read_exact(&mut back)?;
    ensure!(&back == b"ping");
    Ok(())
}

#[test]
fn a_connection_from_before_the_trace_that_works() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
            let client = attempt.local;
            let Outcome::Connected(mut stream) = attempt.wait(SOON) else {
                bail!("the healthy lab does not answer")
            };
            stream.set_read_timeout(Some(SOON))?;
            echo_once(&mut stream)?;
            let observers = Observers::start(lab)?;
            for _ in 0..5 {
                echo_once(&mut stream)?;
                thread::sleep(Duration::from_millis(50));
            }
            observers
                .stop()?
                .check(&[(client, Views::all(inferred("answered").request_unseen()))])
        })
    })
}

#[test]
fn a_client_that_gave_up_before_the_trace() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop"))?;
            let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
            let client = attempt.local;
            let outcome = attempt.wait(Duration::from_millis(200));
            ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
            let observers = Observers::start(lab)?;
            faults::heal_netfilter(&lab.node_a)?;
            // The late SYN-ACK takes a healthy path, finds no socket, and a RST answers it: both drops mean nothing.
            let deadline = Instant::now() + SYN_ACK_AGAIN_WITHIN;
            while lab.pod_a.counter("Tcp", "OutRsts")? == 0 {
                ensure!(Instant::now() < deadline, "the late SYN-ACK never came");
                thread::sleep(Duration::from_millis(20));
            }
            thread::sleep(Duration::from_millis(700));
            observers
                .stop()?
                .check(&[(client, Views::all(inconclusive().request_unseen()))])
        })
    })
}

#[test]
fn a_port_that_is_used_again_is_another_connection() -> Result<()> {
    const PORT: u16 = 41_000;
    both(|family| {
        with_lab(family, |lab| {
            let server = lab.plan.server(6379);
            let listener = listen(&lab.pod_b, server, 16)?;
            let observers = Observers::start(lab)?;
            let Outcome::Connected(stream) = connect(&lab.pod_a, PORT, server)?.wait(SOON) else {
                bail!("the healthy lab does not answer")
            };
            // The server's unread data make its close a RST: no TIME_WAIT keeps the port.
            let (accepted, _) = listener.accept()?;
            (&stream).write_all(b"ping")?;
            thread::sleep(Duration::from_millis(50));
            drop(accepted);
            thread::sleep(Duration::from_millis(50));
            drop(stream);
            faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop"))?;
            let outcome = connect(&lab.pod_a, PORT, server)?.wait(Duration::from_millis(4500));
            ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
            thread::sleep(Duration::from_millis(700));
            let report = observers.stop()?.full.report()?;
            let codes: Vec<_> = report["flows"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|flow| (&flow["client"]["port"], &flow["verdict"]["code"]))
                .collect();
            let want = [
                (&PORT.into(), &"answered".into()),
                (&PORT.into(), &"reply_dropped".into()),
            ];
            ensure!(codes == want, "{codes:?} in {report:#}");
            Ok(())
        })
    })
}
