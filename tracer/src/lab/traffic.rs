//! TCP clients and servers inside a namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrStorage,
};

use super::{LabError, Netns};

/// How long the server keeps a connection on which nothing comes: a bound, not a time that anything waits for.
const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// How often a connection attempt is looked at.
const POLL: Duration = Duration::from_millis(2);

fn tcp_socket(address: SocketAddr, flags: SockFlag) -> nix::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    socket::socket(
        family,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | flags,
        None,
    )
}

/// Listens at `address` in `netns` and accepts nothing. `backlog` as in listen(2): the kernel lets `backlog + 1`
/// connections wait to be accepted.
pub fn listen(netns: &Netns, address: SocketAddr, backlog: u16) -> Result<TcpListener, LabError> {
    netns
        .run(|| {
            let socket = tcp_socket(address, SockFlag::empty())?;
            socket::setsockopt(&socket, socket::sockopt::ReuseAddr, &true)?;
            socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
            socket::listen(&socket, Backlog::new(i32::from(backlog))?)?;
            Ok(TcpListener::from(socket))
        })?
        .map_err(|errno: Errno| {
            LabError::system(format!("listening at {address} in netns {}", netns.name()))(
                errno.into(),
            )
        })
}

/// A TCP server that sends back what it gets, until it is dropped.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it at `address` in `netns`; connections are accepted when this returns.
    pub fn start(netns: &Netns, address: SocketAddr) -> Result<Self, LabError> {
        let listener = listen(netns, address, 1024)?;
        let accepting = listener
            .try_clone()
            .map_err(LabError::system("sharing the listener"))?;
        let acceptor = thread::spawn(move || {
            for stream in accepting.incoming() {
                let Ok(stream) = stream else { break };
                thread::spawn(move || echo(&stream));
            }
        });
        Ok(Self {
            listener,
            acceptor: Some(acceptor),
        })
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Wakes the acceptor: accept(2) on a listener that was shut down fails with EINVAL.
        let woken = socket::shutdown(self.listener.as_raw_fd(), Shutdown::Both).is_ok();
        if let (true, Some(acceptor)) = (woken, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}

/// A connection that breaks is a scenario's intention, not this server's failure.
fn echo(stream: &TcpStream) {
    if stream.set_read_timeout(Some(IDLE_CONNECTION)).is_ok() {
        let _ = io::copy(&mut &*stream, &mut &*stream);
    }
}

/// A connection attempt whose SYN was sent. Dropping it gives up.
#[derive(Debug)]
pub struct Attempt {
    /// The client's address and port.
    pub local: SocketAddr,
    stream: TcpStream,
}

/// How a connection attempt ended.
#[derive(Debug)]
pub enum Outcome {
    /// The handshake completed; the stream blocks.
    Connected(TcpStream),
    /// The kernel was told that it cannot complete (a RST, an ICMP error).
    Failed(io::Error),
    /// Nothing came back in time; the client has given up.
    TimedOut,
}

/// Sends a SYN from `netns` to `remote`, from `local_port` or, if that is 0, from a port that the kernel chooses.
pub fn connect(netns: &Netns, local_port: u16, remote: SocketAddr) -> Result<Attempt, LabError> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let local = (local_port != 0).then(|| SocketAddr::new(any, local_port));
    connect_from(netns, local, remote)
}

/// As [`connect`], from an address of the namespace that is chosen here.
pub fn connect_from(
    netns: &Netns,
    local: Option<SocketAddr>,
    remote: SocketAddr,
) -> Result<Attempt, LabError> {
    let attempt = || -> io::Result<Attempt> {
        let socket = tcp_socket(remote, SockFlag::SOCK_NONBLOCK)?;
        if let Some(local) = local {
            socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(local))?;
        }
        match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(remote)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let stream = TcpStream::from(socket);
        Ok(Attempt {
            local: stream.local_addr()?,
            stream,
        })
    };
    netns.run(attempt)?.map_err(LabError::system(format!(
        "connecting from netns {} to {remote}",
        netns.name()
    )))
}

impl Attempt {
    /// Waits until the attempt has ended, or gives up after `timeout`.
    pub fn wait(self, timeout: Duration) -> Outcome {
        let deadline = Instant::now() + timeout;
        loop {
            match self.stream.take_error() {
                Ok(Some(error)) | Err(error) => return Outcome::Failed(error),
                Ok(None) => {}
            }
            // The kernel names a peer only once the connection is established.
            if self.stream.peer_addr().is_ok() {
                return match self.stream.set_nonblocking(false) {
                    Ok(()) => Outcome::Connected(self.stream),
                    Err(error) => Outcome::Failed(error),
                };
            }
            if Instant::now() >= deadline {
                return Outcome::TimedOut;
            }
            thread::sleep(POLL);
        }
    }
}
