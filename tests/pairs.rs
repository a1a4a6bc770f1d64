//! Many faults side by side: each has a client's and a server's address of its own in one lab, so that each is
//! broken for itself while one trace watches all.

use std::any::Any;
use std::io::Read as _;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tracer::lab::{Family, Outcome, Server, Topology, connect_from};

use crate::expect::{Views, answered};
use crate::kernel::Release;
use crate::observers::Observers;
use crate::scenario::{Ends, echo, echoes};
use crate::with_lab;

/// The client sends its SYN every second (`net.ipv4.tcp_syn_linear_timeouts`), so that the fourth comes before it gives
/// up, after 3 s, which is also when a neighbour that never answers has failed.
const PATIENCE: Duration = Duration::from_millis(3400);

/// Longer than what is then left of the answer deadline: 3.5 s after the first SYN, 0.5 s after the last.
const SETTLE: Duration = Duration::from_millis(600);

const SOON: Duration = Duration::from_secs(3);

const PORT: u16 = 6379;

/// What must live until the trace ends: a listener, a program's link.
pub type Held = Box<dyn Any>;

type Inject = Box<dyn Fn(&Topology, &Pair, &mut Option<Server>) -> Result<Held> + Send + Sync>;

/// The addresses of one client and its server.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Which one, from 1.
    pub number: u8,
    /// An address of pod-a.
    pub client: IpAddr,
    /// An address of pod-b, where a server listens.
    pub server: SocketAddr,
}

/// One fault, which hits the packets of one pair and no other.
#[must_use]
pub struct Fault {
    name: String,
    inject: Inject,
    ends: Ends,
    views: Views,
    also: Option<(IpAddr, Views)>,
    talks: Option<Talk>,
    first: Release,
}

/// What a client does once it is connected.
#[derive(Clone, Copy, Debug)]
struct Talk {
    /// So many bytes are echoed.
    len: usize,
    /// Whether all of them come back before the client gives up.
    comes_back: bool,
}

impl Fault {
    /// Breaks the way of a pair with this step, so that its client waits in vain.
    pub fn new(
        name: impl Into<String>,
        views: Views,
        inject: impl Fn(&Topology, &Pair) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::holding(name, views, move |lab, pair| {
            inject(lab, pair)?;
            Ok(Box::new(()))
        })
    }

    /// As [`Fault::new`], for a fault that lasts as long as something is held.
    pub fn holding(
        name: impl Into<String>,
        views: Views,
        inject: impl Fn(&Topology, &Pair) -> Result<Held> + Send + Sync + 'static,
    ) -> Self {
        Self::serving(name, views, move |lab, pair, _| inject(lab, pair))
    }

    /// As [`Fault::holding`], for a fault of the server, which may be replaced.
    pub fn serving(
        name: impl Into<String>,
        views: Views,
        inject: impl Fn(&Topology, &Pair, &mut Option<Server>) -> Result<Held> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            inject: Box::new(inject),
            ends: Ends::TimedOut,
            views,
            also: None,
            talks: None,
            first: Release(0, 0),
        }
    }

    /// Ends in another way than in silence.
    pub fn ends(mut self, ends: Ends) -> Self {
        self.ends = ends;
        self
    }

    /// Where the client's address is another one on the way.
    pub fn also_from(mut self, client: IpAddr, views: Views) -> Self {
        self.also = Some((client, views));
        self
    }

    /// What breaks it came with this release of the kernel. On an older one the fault is left out, and that is said.
    pub fn since(mut self, first: Release) -> Self {
        self.first = first;
        self
    }

    /// The client is connected, and has something echoed.
    pub fn talks(self) -> Self {
        self.talk(4, true)
    }

    /// As [`Fault::talks`], with so many bytes.
    pub fn transfers(self, len: usize) -> Self {
        self.talk(len, true)
    }

    /// The client is connected, and so many bytes do not come back.
    pub fn stalls(self, len: usize) -> Self {
        self.talk(len, false)
    }

    fn talk(mut self, len: usize, comes_back: bool) -> Self {
        self.talks = Some(Talk { len, comes_back });
        self.ends(Ends::Connected)
    }
}

impl Talk {
    fn hold(self, stream: &TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let came_back = echo(stream, self.len)?;
        ensure!(
            came_back == self.comes_back,
            "the lab is wrong: {} bytes {}",
            self.len,
            if came_back {
                "came back"
            } else {
                "did not come back"
            }
        );
        if came_back {
            stream.shutdown(Shutdown::Write)?;
            let rest = (&*stream).read(&mut [0; 4])?;
            ensure!(rest == 0, "more came back than was sent");
        }
        Ok(())
    }
}

/// Runs them all in one lab: first a connection of each pair that works, then every fault, then a connection of each
/// pair that meets it. The three reports must tell each of them, and no other.
pub fn side_by_side(family: Family, mut faults: Vec<Fault>) -> Result<()> {
    faults.retain(|fault| fault.first.is_reached_or_said(&fault.name));
    with_lab(family, move |lab| {
        let pairs = add_pairs(lab, faults.len())?;
        let serve = |pair: &Pair| Server::start(&lab.pod_b, pair.server).map(Some);
        let mut servers = pairs.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
        let observers = Observers::start(lab)?;
        let mut expected = Vec::new();
        let connect = |pair: &Pair| {
            connect_from(
                &lab.pod_a,
                Some(SocketAddr::new(pair.client, 0)),
                pair.server,
            )
        };
        for (fault, pair) in faults.iter().zip(&pairs) {
            let attempt = connect(pair)?;
            expected.push((attempt.local, Views::all(answered())));
            match attempt.wait(SOON) {
                Outcome::Connected(stream) => echoes(stream)?,
                other => bail!(
                    "{}: the lab does not work while it is healthy: {other:?}",
                    fault.name
                ),
            }
        }
        let mut held = Vec::new();
        for ((fault, pair), server) in faults.iter().zip(&pairs).zip(&mut servers) {
            let injected = (fault.inject)(lab, pair, server);
            held.push(injected.with_context(|| format!("{} could not be injected", fault.name))?);
        }
        let attempts = pairs.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        let deadline = Instant::now() + PATIENCE;
        let mut outcomes = Vec::new();
        let mut elsewhere = Vec::new();
        for (fault, attempt) in faults.iter().zip(attempts) {
            expected.push((attempt.local, fault.views));
            let port = attempt.local.port();
            elsewhere.extend(
                fault
                    .also
                    .map(|(client, views)| (SocketAddr::new(client, port), views)),
            );
            let left = deadline.saturating_duration_since(Instant::now());
            // A failure that comes at once is seen at once, but all give up together.
            let outcome = attempt.wait(left);
            fault
                .ends
                .check(&outcome)
                .with_context(|| fault.name.clone())?;
            outcomes.push(outcome);
        }
        let talking: Vec<_> = faults
            .iter()
            .zip(&outcomes)
            .filter_map(|(fault, outcome)| match outcome {
                Outcome::Connected(stream) => Some((fault, fault.talks?, stream)),
                _ => None,
            })
            .map(|(fault, talk, stream)| Ok((fault, talk, stream.try_clone()?)))
            .collect::<Result<_>>()?;
        let deadline = deadline.max(Instant::now() + PATIENCE);
        thread::scope(|scope| {
            let talks: Vec<_> = talking
                .into_iter()
                .map(|(fault, talk, stream)| (fault, scope.spawn(move || talk.hold(&stream))))
                .collect();
            for (fault, talk) in talks {
                talk.join()
                    .map_err(|_| anyhow!("a client panicked"))?
                    .with_context(|| fault.name.clone())?;
            }
            anyhow::Ok(())
        })?;
        thread::sleep(deadline.saturating_duration_since(Instant::now()) + SETTLE);
        let names = faults.iter().map(|fault| fault.name.as_str());
        let clients = expected.iter().skip(faults.len()).map(|(client, _)| client);
        let legend: Vec<String> = clients
            .zip(names)
            .map(|(client, name)| format!("{client} is {name}"))
            .collect();
        expected.append(&mut elsewhere);
        observers
            .stop()?
            .check(&expected)
            .with_context(|| legend.join("\n"))
    })
}

/// Gives the pods the addresses of so many pairs, and the nodes a route to each and no other.
fn add_pairs(lab: &Topology, count: usize) -> Result<Vec<Pair>> {
    let plan = lab.plan;
    let count = u8::try_from(count)?;
    ensure!(count < 100, "more pairs than a network is planned for");
    let (tunnel_a, tunnel_b) = plan.tunnel();
    let (pod_a, pod_b) = (plan.client_ip(), plan.server(PORT).ip());
    let ((uplink_a, gateway_a), (uplink_b, gateway_b)) = (plan.uplink_a(), plan.uplink_b());
    // What has no route of its own has none at all.
    let mut on_a = vec![
        format!("route add {uplink_b} via {gateway_a}"),
        format!("route del default via {gateway_a}"),
    ];
    let mut on_b = vec![
        format!("route add {uplink_a} via {gateway_b}"),
        format!("route del default via {gateway_b}"),
    ];
    let (mut in_a, mut in_b) = (Vec::new(), Vec::new());
    let mut pairs = Vec::new();
    for number in 1..=count {
        let (client, server) = plan.pair(number);
        in_a.push(format!("address add {client} dev eth0"));
        in_b.push(format!("address add {server} dev eth0"));
        on_a.push(format!("route add {client} via {pod_a}"));
        on_a.push(format!("route add {server} via {tunnel_b} dev vx0"));
        on_b.push(format!("route add {server} via {pod_b}"));
        on_b.push(format!("route add {client} via {tunnel_a} dev vx0"));
        let server = SocketAddr::new(server, PORT);
        pairs.push(Pair {
            number,
            client,
            server,
        });
    }
    lab.pod_a.ip(&in_a.join("\n"))?;
    lab.pod_b.ip(&in_b.join("\n"))?;
    lab.node_a.ip(&on_a.join("\n"))?;
    lab.node_b.ip(&on_b.join("\n"))?;
    Ok(pairs)
}
