//! Builds a small network in namespaces of its own, breaks it or does not, lets a client dial a server in it, and
//! traces that with this very program. Nothing of it is left when the demo ends, however it ends.

use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::cli::Scenario;
use crate::exit;
use crate::lab::{
    Family, Outcome, Plan, Ratchet, Server, Topology, connect, listen, mortal, sandbox,
};
use crate::privilege;

/// The lab's number, which no test reaches: its addresses are 10.254.0.0/16.
const LAB: u8 = 254;
/// Redis, as in the incident that this program was made for.
const PORT: u16 = 6379;

/// Shows a scenario. Fails if the verdict is not the scenario's own.
pub fn run(scenario: Scenario) -> Result<u8> {
    privilege::check()?;
    sandbox::run(|| match scenario {
        Scenario::Mtu => show_mtu(),
        Scenario::LostSynack | Scenario::Healthy => show(scenario),
    })?
}

fn show(scenario: Scenario) -> Result<u8> {
    let plan = Plan::new(LAB, Family::V4);
    let server = plan.server(PORT);
    anstream::eprintln!(
        "A client in netns pod-a dials a server in netns pod-b at {server}.\n\
         Their nodes, node-a and node-b, are joined by VXLAN across the router netns underlay."
    );
    let lab = Topology::build(plan)?;
    if scenario == Scenario::LostSynack {
        anstream::eprintln!("Something between the nodes loses the answer. Where?");
        lab.underlay.nft(&plan.drop_synack_in_tunnel())?;
    }
    let _server = Server::start(&lab.pod_b, server)?;
    let (arguments, expected) = match scenario {
        Scenario::Healthy => ("--for 2s", exit::OK),
        Scenario::LostSynack | Scenario::Mtu => ("--until-verdict --for 10s", exit::FAULT),
    };
    let arguments = format!("trace {arguments} host {} and port {PORT}", server.ip());
    anstream::eprintln!("\n$ sudo tracer {arguments}");
    let (mut child, talk) = start(&arguments)?;
    let attempt = connect(&lab.pod_a, 0, server)?;
    let status = child.wait().context("waiting for the trace")?;
    // The thread ends with the child's stderr.
    let _ = talk.join();
    let outcome = attempt.wait(Duration::ZERO);
    let answered = matches!(outcome, Outcome::Connected(_));
    if answered != (scenario == Scenario::Healthy) {
        bail!("the demo's network is not as it should be: the client got {outcome:?}");
    }
    ends_with(status, expected)
}

/// Restarts a node's agent three times, audits what that has made of it, and traces one large reply of its oldest pod.
fn show_mtu() -> Result<u8> {
    anstream::eprintln!(
        "On a node with WireGuard, an agent takes the MTU of its own WireGuard device for the new base at each\n\
         restart. It has restarted three times; a pod of each time runs, the oldest is pod-0."
    );
    let mut lab = Ratchet::build(LAB)?;
    for _ in 0..RESTARTS {
        lab.restart()?;
    }
    let mut arguments = "mtu".to_owned();
    for netns in lab.namespaces() {
        arguments.push_str(" --netns ");
        arguments.push_str(netns.name());
    }
    anstream::eprintln!("\n$ sudo tracer {arguments}");
    let program = env::current_exe().context("where is this program?")?;
    let status = mortal(program).args(arguments.split(' ')).status()?;
    ends_with(status, exit::MTU)?;

    let server = lab.pod(0, PORT);
    let listener = listen(&lab.pods[0], server, 8)?;
    // The server answers with one full segment of an MTU of 1460: IPv4, TCP and its timestamps take 52 bytes.
    let answering = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&[b'.'; 1460 - 52])?;
        // Until the client has given up.
        stream.read(&mut [0]).map(drop)
    });
    anstream::eprintln!(
        "\nA client outside asks pod-0 at {server} for a reply of one full segment."
    );
    let arguments = format!(
        "trace --until-verdict --for 10s host {} and port {PORT}",
        server.ip()
    );
    anstream::eprintln!("\n$ sudo tracer {arguments}");
    let (mut child, talk) = start(&arguments)?;
    let attempt = connect(&lab.client, 0, server)?;
    let Outcome::Connected(mut stream) = attempt.wait(CONNECTS_WITHIN) else {
        bail!("the demo's network is not as it should be: not even small packets pass");
    };
    stream.set_read_timeout(Some(CONNECTS_WITHIN))?;
    let read = stream.read(&mut [0; 64]);
    let status = child.wait().context("waiting for the trace")?;
    let _ = talk.join();
    drop(stream);
    let _ = answering.join();
    if matches!(read, Ok(bytes) if bytes > 0) {
        bail!("the demo's network is not as it should be: the large reply has arrived");
    }
    ends_with(status, exit::FAULT)
}

/// How often the agent of the MTU demo restarts.
const RESTARTS: u8 = 3;
/// How long a handshake may take, and how long the client waits for the large reply.
const CONNECTS_WITHIN: Duration = Duration::from_secs(4);

fn ends_with(status: ExitStatus, expected: u8) -> Result<u8> {
    match status.code() {
        Some(code) if code == i32::from(expected) => Ok(exit::OK),
        Some(code) => bail!("it ended with exit code {code}; {expected} was to be expected"),
        None => bail!("it was killed ({status})"),
    }
}

/// Starts the trace and waits until it says that it is ready; the rest of what it says goes to stderr as it comes.
fn start(arguments: &str) -> Result<(Child, JoinHandle<()>)> {
    let program = env::current_exe().context("where is this program?")?;
    let mut child = mortal(program)
        .args(arguments.split(' '))
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the trace")?;
    let stderr = child.stderr.take().context("the trace has no stderr")?;
    let mut lines = BufReader::new(stderr).lines();
    loop {
        let Some(line) = lines.next().transpose()? else {
            let status = child.wait()?;
            bail!("the trace ended before it was ready ({status})");
        };
        anstream::eprintln!("{line}");
        if line.starts_with("tracer: ready") {
            break;
        }
    }
    anstream::eprintln!();
    let talk = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            anstream::eprintln!("{line}");
        }
    });
    Ok((child, talk))
}
