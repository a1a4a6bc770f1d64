//! A filter follows datagrams and echoes through a translation that node-a makes, whichever half it names, and takes
//! nobody else's packets for translated ones.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tracer::lab::{Family, Topology, ping, udp_socket};
use tracer_tests::{Captured, Seen, Tracer, faults, with_lab};

const SOON: Duration = Duration::from_secs(3);

/// The service's and its backend's port.
const PORT: u16 = 9999;
/// Where others send datagrams of the same lengths.
const OTHERS_PORT: u16 = 9998;
/// The identifier of the echoes.
const ECHO_ID: u16 = 4242;

const EXCHANGES: usize = 3;

#[derive(Clone, Copy)]
struct Service {
    family: Family,
    masquerade: bool,
}

impl Service {
    /// Has node-a translate the service's address, for UDP and for echoes.
    fn translate(self, lab: &Topology) -> Result<()> {
        let ip = lab.plan.nft_family();
        let (service, backend) = (lab.plan.service(PORT), lab.plan.server(PORT));
        let echo = match self.family {
            Family::V4 => "icmp type echo-request",
            Family::V6 => "icmpv6 type echo-request",
        };
        lab.node_a.nft(&format!(
            "add table {ip} nat\n\
             add chain {ip} nat prerouting {{ type nat hook prerouting priority -100; }}\n\
             add rule {ip} nat prerouting {ip} daddr {} udp dport {PORT} dnat to {backend}\n\
             add rule {ip} nat prerouting {ip} daddr {} {echo} dnat to {}\n",
            service.ip(),
            service.ip(),
            backend.ip()
        ))?;
        if self.masquerade {
            lab.node_a.nft(&format!(
                "add chain {ip} nat postrouting {{ type nat hook postrouting priority 100; }}\n\
                 add rule {ip} nat postrouting oifname vx0 masquerade random\n"
            ))?;
        }
        Ok(())
    }

    /// Runs `traffic` under a tracer for each filter, and one without; hands over what they captured, the last without.
    fn trace(
        self,
        filters: &[String],
        traffic: impl Fn(&Topology) -> Result<()> + Send + Sync,
    ) -> Result<Vec<Captured>> {
        with_lab(self.family, |lab| {
            self.translate(lab)?;
            let directory = tempfile::tempdir()?;
            let mut tracers = Vec::new();
            for filter in filters.iter().map(Some).chain([None]) {
                let path = directory.path().join(format!("{}.jsonl", tracers.len()));
                // A filter names places of this lab, whose number is known only now.
                let filter = filter.map(|filter| {
                    filter
                        .replace("SERVICE", &lab.plan.service(0).ip().to_string())
                        .replace("POD", &lab.plan.client_ip().to_string())
                        .replace("BACKEND", &lab.plan.server(0).ip().to_string())
                });
                tracers.push((start(lab, &path, filter.as_deref())?, path));
            }
            for (tracer, _) in &mut tracers {
                tracer.wait_until_ready()?;
            }
            traffic(lab)?;
            let finish = |(tracer, path): (Tracer, PathBuf)| {
                tracer.interrupt()?;
                Captured::read(&path)
            };
            tracers.into_iter().map(finish).collect()
        })
    }
}

fn start(lab: &Topology, capture: &Path, filter: Option<&str>) -> Result<Tracer> {
    let capture = capture.to_str().context("a path that is text")?;
    let mut arguments = vec!["trace", "--format", "json", "--for", "60s"];
    arguments.extend(["--all-packets", "--capture", capture]);
    for netns in lab.namespaces() {
        arguments.extend(["--netns", netns.name()]);
    }
    arguments.extend(filter);
    Tracer::start(&arguments)
}

/// How often each packet was seen, by what it says: requests are even, their answers odd.
fn sightings(seen: &[Seen<'_>]) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for seen in seen {
        if let Some(layer) = seen.packet.inner() {
            let says = if layer.is_udp() {
                layer.payload_len
            } else {
                2 * u32::from(layer.echo_seq()) + u32::from(layer.is_echo_reply())
            };
            *counts.entry(says).or_default() += 1;
        }
    }
    counts
}

/// Exchanges datagrams of lengths that tell them apart.
fn exchange(client: &UdpSocket, to: SocketAddr, server: &UdpSocket) -> Result<()> {
    let mut bytes = [0; 256];
    for number in 0..EXCHANGES {
        let len = 100 + 2 * number;
        client.send_to(&bytes[..len], to)?;
        let (_, from) = server.recv_from(&mut bytes)?;
        server.send_to(&bytes[..=len], from)?;
        let (_, from) = client.recv_from(&mut bytes)?;
        ensure!(from == to, "not translated back: {from}");
    }
    Ok(())
}

fn datagrams(lab: &Topology) -> Result<()> {
    let from = SocketAddr::new(lab.plan.client_ip(), 0);
    let (client, other) = (udp_socket(&lab.pod_a, from)?, udp_socket(&lab.pod_a, from)?);
    let (server, others_server) = (
        udp_socket(&lab.pod_b, lab.plan.server(PORT))?,
        udp_socket(&lab.pod_b, lab.plan.server(OTHERS_PORT))?,
    );
    for socket in [&client, &other, &server, &others_server] {
        socket.set_read_timeout(Some(SOON))?;
    }
    // Others come in between, in skbs that are used again.
    for _ in 0..5 {
        exchange(&other, lab.plan.server(OTHERS_PORT), &others_server)?;
    }
    exchange(&client, lab.plan.service(PORT), &server)?;
    for _ in 0..5 {
        exchange(&other, lab.plan.server(OTHERS_PORT), &others_server)?;
    }
    Ok(())
}

fn filters_follow_datagrams(family: Family, masquerade: bool) -> Result<()> {
    let service = Service { family, masquerade };
    let filters = [
        "host SERVICE".to_owned(),
        format!("host POD and port {PORT}"),
        format!("host BACKEND and port {PORT}"),
    ];
    let captured = service.trace(&filters, datagrams)?;
    let [of_service, of_pod, of_backend, whole] = &captured[..] else {
        panic!("as many captures as filters, and one")
    };
    let want = sightings(&whole.of_port(PORT));
    ensure!(
        want.len() == 2 * EXCHANGES && want.values().all(|count| *count >= 10),
        "{want:?}"
    );
    for (name, captured) in [("service", of_service), ("pod", of_pod)] {
        let found = sightings(&captured.of_port(PORT));
        ensure!(found == want, "{name}: {found:?}, want {want:?}");
    }
    // What lies in front of the translation is known once the first request has passed it.
    let mut found = sightings(&of_backend.of_port(PORT));
    let (first, all) = (found.remove(&100), want.get(&100).copied());
    ensure!(first.is_some() && first < all, "{first:?} of {all:?}");
    ensure!(
        found
            .iter()
            .all(|(says, count)| want.get(says) == Some(count)),
        "backend: {found:?}, want {want:?}"
    );
    ensure!(found.len() == want.len() - 1);
    ensure!(!whole.of_port(OTHERS_PORT).is_empty());
    for captured in [of_service, of_pod, of_backend] {
        let others = captured.of_port(OTHERS_PORT).len();
        ensure!(others == 0, "{others} packets of others");
    }
    Ok(())
}

#[test]
fn a_filter_follows_datagrams_to_a_service() -> Result<()> {
    filters_follow_datagrams(Family::V4, false)
}

#[test]
fn a_filter_follows_datagrams_to_a_service_over_ipv6() -> Result<()> {
    filters_follow_datagrams(Family::V6, false)
}

#[test]
fn a_filter_follows_datagrams_to_a_service_and_masquerade() -> Result<()> {
    filters_follow_datagrams(Family::V4, true)
}

fn filters_follow_echoes(family: Family, masquerade: bool) -> Result<()> {
    let service = Service { family, masquerade };
    let captured = service.trace(&["host SERVICE".to_owned()], |lab| {
        for seq in 0..3 {
            let to = lab.plan.service(0).ip();
            ensure!(ping(&lab.pod_a, to, ECHO_ID, seq, SOON)?, "no reply");
        }
        Ok(())
    })?;
    let echoes = |captured: &Captured| {
        let echoes = captured.packets().filter(|seen| {
            seen.packet
                .inner()
                .is_some_and(|layer| layer.is_echo_request() || layer.is_echo_reply())
        });
        sightings(&echoes.collect::<Vec<_>>())
    };
    let (mut found, mut want) = (echoes(&captured[0]), echoes(&captured[1]));
    if family == Family::V6 && masquerade {
        // With both ends translated and in another skb, for want of headroom, nothing joins the two halves of the
        // request: the first answer does, when it is translated back.
        for first in [0, 1] {
            ensure!(found.remove(&first) < want.remove(&first), "{found:?}");
        }
    }
    ensure!(
        want.len() >= 4 && want.values().all(|count| *count >= 10),
        "{want:?}"
    );
    ensure!(found == want, "{found:?}, want {want:?}");
    Ok(())
}

#[test]
fn a_filter_follows_echoes_to_a_service() -> Result<()> {
    filters_follow_echoes(Family::V4, false)
}

#[test]
fn a_filter_follows_echoes_to_a_service_and_masquerade_over_ipv6() -> Result<()> {
    filters_follow_echoes(Family::V6, true)
}

#[test]
fn a_filter_follows_a_datagram_that_dies_after_its_translation() -> Result<()> {
    for hook in ["forward", "postrouting"] {
        let service = Service {
            family: Family::V4,
            masquerade: false,
        };
        let captured = service.trace(&["host SERVICE".to_owned()], |lab| {
            faults::netfilter(&lab.node_a, hook, &format!("udp dport {PORT} drop"))?;
            let from = SocketAddr::new(lab.plan.client_ip(), 0);
            let client = udp_socket(&lab.pod_a, from)?;
            client.send_to(&[0; 100], lab.plan.service(PORT))?;
            Ok(())
        })?;
        let (found, want) = (
            sightings(&captured[0].of_port(PORT)),
            sightings(&captured[1].of_port(PORT)),
        );
        ensure!(want == [(100, 3)].into(), "{hook}: {want:?}");
        ensure!(found == want, "{hook}: {found:?}, want {want:?}");
    }
    Ok(())
}
