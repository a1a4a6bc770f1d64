//! UDP and ICMP echo: one fault each, IPv4 and IPv6, and a healthy exchange before it in the same reports.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tracer::lab::{Family, Topology, UdpServer, answer_dns, dns_query, ping, udp_socket};
use tracer_tests::{
    Expected, Observers, Views, answered, both, faults, inferred, proven, unseen, with_lab,
};

/// UDP's answer deadline, and some.
const UDP_DEADLINE: Duration = Duration::from_millis(5300);
/// That of ICMP echo.
const ECHO_DEADLINE: Duration = Duration::from_millis(1300);
/// Longer than any answer takes here.
const PATIENCE: Duration = Duration::from_millis(500);

/// A reply leaves the server's node, and nothing asks again.
const ANSWER_LEFT: Expected = inferred("answered");

/// Sends one datagram from pod-a and says whether one came back; the client's address first.
fn ask(lab: &Topology, port: u16, payload: &[u8]) -> Result<(SocketAddr, bool)> {
    let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.send_to(payload, lab.plan.server(port))?;
    let came_back = client.recv_from(&mut [0; 2048]).is_ok();
    Ok((client.local_addr()?, came_back))
}

#[test]
fn dns_answer_dropped_by_the_client_nodes_forward_chain() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = UdpServer::start(&lab.pod_b, lab.plan.server(53), answer_dns)?;
            let observers = Observers::start(lab)?;
            let (healthy, came_back) = ask(lab, 53, &dns_query(1))?;
            ensure!(came_back, "the lab does not answer while it is healthy");
            faults::netfilter(&lab.node_a, "forward", "udp sport 53 drop")?;
            let (broken, came_back) = ask(lab, 53, &dns_query(2))?;
            ensure!(!came_back, "the rule drops nothing");
            thread::sleep(UDP_DEADLINE);
            let dropped = proven("reply_dropped")
                .at("node-a", &["vx0"])
                .cause(&["netfilter"]);
            observers.stop()?.check(&[
                (
                    healthy,
                    Views {
                        server_node: ANSWER_LEFT,
                        ..Views::all(answered())
                    },
                ),
                (
                    broken,
                    Views {
                        full: dropped,
                        client_node: dropped,
                        server_node: ANSWER_LEFT,
                    },
                ),
            ])
        })
    })
}

#[test]
fn dns_through_a_service_is_one_flow() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let ip = lab.plan.nft_family();
            let (service, backend) = (lab.plan.service(53), lab.plan.server(53));
            lab.node_a.nft(&format!(
                "add table {ip} nat\n\
                 add chain {ip} nat prerouting {{ type nat hook prerouting priority -100; }}\n\
                 add rule {ip} nat prerouting {ip} daddr {} udp dport 53 dnat to {backend}\n",
                service.ip()
            ))?;
            let _server = UdpServer::start(&lab.pod_b, backend, answer_dns)?;
            let observers = Observers::start(lab)?;
            let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
            client.set_read_timeout(Some(PATIENCE))?;
            client.send_to(&dns_query(1), service)?;
            let (_, from) = client.recv_from(&mut [0; 2048])?;
            ensure!(from == service, "the answer is not translated back");
            let reports = observers.stop()?;
            reports.check(&[(
                client.local_addr()?,
                Views {
                    server_node: ANSWER_LEFT,
                    ..Views::all(answered())
                },
            )])?;
            let report = reports.full.report()?;
            let asked = report
                .pointer("/flows/0/server/addr")
                .and_then(Value::as_str);
            ensure!(
                asked == Some(&service.ip().to_string()),
                "the client asked {asked:?}"
            );
            let translations = report.pointer("/flows/0/translations");
            ensure!(
                translations.and_then(Value::as_array).map(Vec::len) == Some(2),
                "there and back, not {translations:?}"
            );
            Ok(())
        })
    })
}

#[test]
fn dns_query_that_nobody_reads() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _mute = udp_socket(&lab.pod_b, lab.plan.server(53))?;
            let observers = Observers::start(lab)?;
            let (broken, _) = ask(lab, 53, &dns_query(1))?;
            thread::sleep(UDP_DEADLINE);
            let silent = inferred("request_not_answered").at("pod-b", &["eth0"]);
            observers.stop()?.check(&[(
                broken,
                Views {
                    full: silent,
                    server_node: silent,
                    client_node: inferred("request_left_node").at("node-a", &["ens0"]),
                },
            )])
        })
    })
}

#[test]
fn udp_that_nobody_answers_is_one_way() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _sink = udp_socket(&lab.pod_b, lab.plan.server(8125))?;
            let observers = Observers::start(lab)?;
            let (client, _) = ask(lab, 8125, b"requests:1|c")?;
            thread::sleep(PATIENCE);
            observers
                .stop()?
                .check(&[(client, Views::all(inferred("one_way")))])
        })
    })
}

#[test]
fn udp_to_a_port_without_a_socket_is_refused() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let observers = Observers::start(lab)?;
            let (client, _) = ask(lab, 9999, b"hello")?;
            thread::sleep(PATIENCE);
            let refused = proven("refused").cause(&["no_listener"]);
            observers.stop()?.check(&[(client, Views::all(refused))])
        })
    })
}

#[test]
fn udp_request_dropped_in_the_server_pods_input() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = UdpServer::start(&lab.pod_b, lab.plan.server(7777), |_| {})?;
            let observers = Observers::start(lab)?;
            let (healthy, came_back) = ask(lab, 7777, b"hello")?;
            ensure!(came_back, "the lab does not answer while it is healthy");
            faults::netfilter(&lab.pod_b, "input", "udp dport 7777 drop")?;
            let (broken, came_back) = ask(lab, 7777, b"hello")?;
            ensure!(!came_back, "the rule drops nothing");
            thread::sleep(UDP_DEADLINE);
            let dropped = proven("request_dropped")
                .at("pod-b", &["eth0"])
                .stage("local_in")
                .cause(&["netfilter"]);
            observers.stop()?.check(&[
                (
                    healthy,
                    Views {
                        server_node: ANSWER_LEFT,
                        ..Views::all(answered())
                    },
                ),
                (
                    broken,
                    Views {
                        full: dropped,
                        server_node: dropped,
                        client_node: inferred("one_way"),
                    },
                ),
            ])
        })
    })
}

#[test]
fn udp_answered_before_and_silent_since_is_a_fault() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let server = UdpServer::start(&lab.pod_b, lab.plan.server(7777), |_| {})?;
        let observers = Observers::start(lab)?;
        let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.send_to(b"hello", lab.plan.server(7777))?;
        ensure!(
            client.recv_from(&mut [0; 2048]).is_ok(),
            "no answer at first"
        );
        drop(server);
        let _mute = udp_socket(&lab.pod_b, lab.plan.server(7777))?;
        for _ in 0..2 {
            client.send_to(b"hello", lab.plan.server(7777))?;
            ensure!(client.recv_from(&mut [0; 2048]).is_err(), "an answer");
        }
        thread::sleep(UDP_DEADLINE);
        let silent = inferred("request_not_answered").at("pod-b", &["eth0"]);
        observers.stop()?.check(&[(
            client.local_addr()?,
            Views {
                full: silent,
                server_node: ANSWER_LEFT,
                client_node: inferred("request_left_node"),
            },
        )])
    })
}

#[test]
fn udp_that_overflows_its_receive_buffer_loses_data() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _sink = udp_socket(&lab.pod_b, lab.plan.server(8125))?;
            let observers = Observers::start(lab)?;
            let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
            // `net.core.rmem_default` is 212,992 bytes, and an skb counts for more than it carries.
            for _ in 0..200 {
                client.send_to(&[0; 1200], lab.plan.server(8125))?;
                thread::sleep(Duration::from_micros(200));
            }
            thread::sleep(PATIENCE);
            let overflow = proven("data_dropped")
                .at("pod-b", &["eth0"])
                .cause(&["socket_buffer"]);
            observers.stop()?.check(&[(
                client.local_addr()?,
                Views {
                    full: overflow,
                    server_node: overflow,
                    client_node: inferred("one_way"),
                },
            )])
        })
    })
}

/// What a tunnel's datagrams look like: WireGuard's type and receiver, a counter, and what is encrypted.
fn ciphertext(counter: u8) -> Vec<u8> {
    let mut bytes = vec![
        4, 0, 0, 0, 0x7d, 0x3c, 0xe5, 0x91, counter, 0, 0, 0, 0, 0, 0, 0,
    ];
    bytes.extend([0x5a; 80].map(|byte: u8| byte.wrapping_mul(counter | 1)));
    bytes
}

#[test]
fn a_tunnel_on_the_port_of_dns_is_one_flow() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = UdpServer::start(&lab.pod_b, lab.plan.server(53), |_| {})?;
            let observers = Observers::start(lab)?;
            let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
            client.set_read_timeout(Some(PATIENCE))?;
            for counter in 0..5 {
                client.send_to(&ciphertext(counter), lab.plan.server(53))?;
                client.recv_from(&mut [0; 2048])?;
            }
            observers.stop()?.check(&[(
                client.local_addr()?,
                Views {
                    server_node: ANSWER_LEFT,
                    ..Views::all(answered())
                },
            )])
        })
    })
}

#[test]
fn a_tunnel_on_the_port_of_dns_need_not_be_answered() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _mute = udp_socket(&lab.pod_b, lab.plan.server(53))?;
            let observers = Observers::start(lab)?;
            let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
            for counter in 0..5 {
                client.send_to(&ciphertext(counter), lab.plan.server(53))?;
            }
            thread::sleep(UDP_DEADLINE);
            observers
                .stop()?
                .check(&[(client.local_addr()?, Views::all(inferred("one_way")))])
        })
    })
}

/// An echo has no ports: its flow is named by the client's address alone.
fn pinged(lab: &Topology) -> SocketAddr {
    SocketAddr::new(lab.plan.client_ip(), 0)
}

#[test]
fn ping_reply_dropped_in_the_client_pods_input() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let reply = match family {
                Family::V4 => "icmp type echo-reply drop",
                Family::V6 => "icmpv6 type echo-reply drop",
            };
            let observers = Observers::start(lab)?;
            faults::netfilter(&lab.pod_a, "input", reply)?;
            let server: IpAddr = lab.plan.server(0).ip();
            ensure!(
                !ping(&lab.pod_a, server, 77, 1, PATIENCE)?,
                "the rule drops nothing"
            );
            thread::sleep(ECHO_DEADLINE);
            let dropped = proven("reply_dropped")
                .at("pod-a", &["eth0"])
                .cause(&["netfilter"]);
            observers.stop()?.check(&[(
                pinged(lab),
                Views {
                    full: dropped,
                    client_node: dropped,
                    server_node: ANSWER_LEFT,
                },
            )])
        })
    })
}

#[test]
fn ping_that_is_answered() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let observers = Observers::start(lab)?;
            let server: IpAddr = lab.plan.server(0).ip();
            ensure!(ping(&lab.pod_a, server, 77, 1, PATIENCE)?, "no reply");
            observers.stop()?.check(&[(
                pinged(lab),
                Views {
                    server_node: ANSWER_LEFT,
                    ..Views::all(answered())
                },
            )])
        })
    })
}

#[test]
fn a_host_that_pings_itself_is_answered() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let observers = Observers::start(lab)?;
            let itself = lab.plan.client_ip();
            ensure!(ping(&lab.pod_a, itself, 77, 1, PATIENCE)?, "no reply");
            observers.stop()?.check(&[(
                pinged(lab),
                Views {
                    server_node: unseen(),
                    ..Views::all(answered())
                },
            )])
        })
    })
}
