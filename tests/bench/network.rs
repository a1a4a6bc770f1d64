//! Two namespaces joined by a veth, and the traffic between them. The measured work is pinned to one CPU, and the
//! tools to the other.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use tracer::lab::{LabError, Netns};

/// Where the measured work runs.
pub const WORK_CPU: usize = 0;
/// Where the tools run, and the receivers of traffic between two CPUs.
pub const TOOL_CPU: usize = 1;

/// The client's address, in `bench-a`.
pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 77, 1));
/// The server's address, in `bench-b`.
pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 201, 77, 2));

/// Datagrams that are sent before they are received: few enough for any socket buffer.
const BATCH: usize = 64;
/// The smallest payload of a full Ethernet frame.
const DATAGRAM: &[u8] = &[0; 18];

/// The namespaces.
pub struct Pair {
    pub client: Netns,
    pub server: Netns,
}

impl Pair {
    pub fn build() -> Result<Self, LabError> {
        let (client, server) = (Netns::add("bench-a")?, Netns::add("bench-b")?);
        // Without learned neighbours no ARP comes between the packets that are counted.
        client.ip(&format!(
            "link add eth0 address 02:00:00:00:00:0a type veth peer name eth0 address 02:00:00:00:00:0b netns bench-b\n\
             addr add {CLIENT}/24 dev eth0\n\
             link set eth0 up\n\
             neigh replace {SERVER} lladdr 02:00:00:00:00:0b nud permanent dev eth0\n"
        ))?;
        server.ip(&format!(
            "addr add {SERVER}/24 dev eth0 nodad\n\
             link set eth0 up\n\
             neigh replace {CLIENT} lladdr 02:00:00:00:00:0a nud permanent dev eth0\n"
        ))?;
        client.wait_for_links()?;
        server.wait_for_links()?;
        Ok(Self { client, server })
    }

    /// A listener in the server's namespace.
    pub fn listen(&self, port: u16) -> Result<TcpListener> {
        let listener = self
            .server
            .run(|| TcpListener::bind(SocketAddr::new(SERVER, port)))?;
        listener.with_context(|| format!("listening at port {port}"))
    }

    /// A connection from the client's namespace.
    pub fn connect(&self, listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
        let address = listener.local_addr()?;
        let client = self.client.run(|| TcpStream::connect(address))??;
        let (server, _) = listener.accept()?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok((client, server))
    }
}

/// Small datagrams that one thread sends and receives, so that a packet's whole way is on one CPU.
pub struct Datagrams {
    sender: UdpSocket,
    receiver: UdpSocket,
}

impl Datagrams {
    pub fn open(pair: &Pair) -> Result<Self> {
        let receiver = pair
            .server
            .run(|| UdpSocket::bind(SocketAddr::new(SERVER, 0)))??;
        let sender = pair
            .client
            .run(|| UdpSocket::bind(SocketAddr::new(CLIENT, 0)))??;
        sender.connect(receiver.local_addr()?)?;
        // On a busy machine the packet may wait for a thread of the kernel that has no priority.
        receiver.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { sender, receiver })
    }

    /// What one packet takes, sent and received, in nanoseconds: the median of many batches. To be called on a
    /// thread of [`at_work`].
    #[expect(
        clippy::cast_precision_loss,
        reason = "nanoseconds of less than a second"
    )]
    pub fn nanoseconds_each(&self, during: Duration) -> Result<f64> {
        let begin = Instant::now();
        let mut batches = Vec::new();
        let mut buffer = [0; 64];
        while begin.elapsed() < during {
            let batch = Instant::now();
            for _ in 0..BATCH {
                self.sender.send(DATAGRAM)?;
            }
            for _ in 0..BATCH {
                self.receiver
                    .recv(&mut buffer)
                    .context("a datagram was lost")?;
            }
            batches.push(batch.elapsed().as_nanos() as f64 / BATCH as f64);
        }
        Ok(crate::statistics::median(&batches))
    }
}

/// Sends as fast as TCP takes it, and returns the received bytes per second.
#[expect(clippy::cast_precision_loss, reason = "bytes of some gigabytes")]
pub fn bulk(pair: &Pair, listener: &TcpListener, during: Duration) -> Result<f64> {
    let (mut client, mut server) = pair.connect(listener)?;
    let (received, elapsed) = thread::scope(|scope| -> Result<(u64, Duration)> {
        let sender = scope.spawn(move || -> Result<()> {
            take(WORK_CPU)?;
            let chunk = vec![0; 128 << 10];
            let begin = Instant::now();
            while begin.elapsed() < during {
                client.write_all(&chunk)?;
            }
            Ok(())
        });
        let receiver = scope.spawn(move || -> Result<(u64, Duration)> {
            take(TOOL_CPU)?;
            let mut buffer = vec![0; 256 << 10];
            let (begin, mut received) = (Instant::now(), 0);
            loop {
                match server.read(&mut buffer)? {
                    0 => return Ok((received, begin.elapsed())),
                    length => received += length as u64,
                }
            }
        });
        join(sender)?;
        join(receiver)
    })?;
    Ok(received as f64 / elapsed.as_secs_f64())
}

/// One byte to and fro between threads on two CPUs, and how long each round trip took, in nanoseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "nanoseconds of less than a second"
)]
pub fn round_trips(pair: &Pair, listener: &TcpListener, during: Duration) -> Result<Vec<f64>> {
    let (mut client, mut server) = pair.connect(listener)?;
    thread::scope(|scope| -> Result<Vec<f64>> {
        let answers = scope.spawn(move || -> Result<()> {
            take(TOOL_CPU)?;
            let mut byte = [0];
            while server.read(&mut byte)? > 0 {
                server.write_all(&byte)?;
            }
            Ok(())
        });
        let asks = scope.spawn(move || -> Result<Vec<f64>> {
            take(WORK_CPU)?;
            let (begin, mut trips, mut byte) = (Instant::now(), Vec::new(), [0]);
            while begin.elapsed() < during {
                let trip = Instant::now();
                client.write_all(&byte)?;
                client.read_exact(&mut byte)?;
                trips.push(trip.elapsed().as_nanos() as f64);
            }
            Ok(trips)
        });
        let trips = join(asks)?;
        join(answers)?;
        Ok(trips)
    })
}

/// Runs the measured work on its CPU.
pub fn at_work<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        join(scope.spawn(|| {
            take(WORK_CPU)?;
            work()
        }))
    })
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
}

/// Binds this thread to a CPU.
fn take(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pinning to CPU {cpu}"))
}

/// Gives this thread, and every thread and tool that it starts from now on, one real-time priority: others' work is
/// kept out of what is measured, and none of the measured keeps another from running when it waits.
pub fn go_first() -> Result<()> {
    let status = Command::new("chrt")
        .args(["--fifo", "--pid", "1", &gettid().to_string()])
        .stderr(Stdio::null())
        .status()
        .context("running chrt")?;
    if !status.success() {
        crate::progress("no real-time priority here, so others' work is measured as well");
    }
    Ok(())
}
