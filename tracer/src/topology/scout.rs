//! Namespaces that are born while a trace runs: tracer itself has no privilege to enter them by then, so a second
//! process keeps it. That process reads nothing but `/proc`, `/run/netns` and our questions, hands over the open
//! socket and handle of each namespace that we do not know, and dies with us.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::{Child, Command, Stdio},
};

use caps::Capability;
use nix::{
    cmsg_space,
    errno::Errno,
    sys::{
        prctl,
        signal::Signal,
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
            UnixAddr, recvmsg, sendmsg, socketpair,
        },
    },
};
use serde::{Deserialize, Serialize};

use crate::privilege;

use super::{
    NETNS_MAX,
    netns::{self, Failure, Known, Opened, Scan},
    raise_file_limit,
    rtnetlink::RouteSocket,
    sysctls::Sysctls,
};

/// By this name a program knows that it is to be the helper.
pub const NETNS_HELPER: &str = "tracer-netns";

/// What the helper needs: to enter a namespace, and to look at the namespaces of other users' processes.
const KEPT: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_SYS_PTRACE];

/// The longest message: all namespaces that are known and none of them named, or as many failures and 256 names.
const MESSAGE_BYTES_MAX: usize = 192 * 1024;

/// The most files that come with a message.
const FILES_MAX: usize = 4;

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// A namespace; its handle and its socket come along, and those of its directories of sysctls that there are.
    Found {
        inode: u64,
        name: Option<String>,
        ipv4: bool,
        ipv6: bool,
    },
    /// That was all.
    Done {
        failures: Vec<Failure>,
        beyond_limit: usize,
        hidden: usize,
        gone: Vec<u64>,
        named: Vec<(u64, String)>,
    },
}

/// The helper, as we see it.
#[derive(Debug)]
pub(super) struct Scout {
    child: Child,
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// What the helper has found since the question, until it says that it is done.
    scan: Option<Scan>,
}

impl Scout {
    /// Starts the helper.
    pub(super) fn start(tracer: &Path) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let child = Command::new(tracer)
            .arg0(NETNS_HELPER)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            // Ctrl-C is meant for us: the helper works on until we are done.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            child,
            socket: ours,
            buffer: vec![0; MESSAGE_BYTES_MAX],
            scan: None,
        })
    }

    /// Whether a question is not answered yet.
    pub(super) fn busy(&self) -> bool {
        self.scan.is_some()
    }

    /// Asks for every namespace that is not known, without waiting.
    pub(super) fn ask(&mut self, known: &Known) -> io::Result<()> {
        send(self.socket.as_fd(), known, &[], MsgFlags::MSG_DONTWAIT)?;
        self.scan = Some(Scan::default());
        Ok(())
    }

    /// What was found, once the helper is done; does not wait.
    pub(super) fn answer(&mut self) -> io::Result<Option<Scan>> {
        while let Some(scan) = &mut self.scan {
            let received = receive(
                self.socket.as_fd(),
                &mut self.buffer,
                MsgFlags::MSG_DONTWAIT,
            );
            let (answer, files) = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            match answer {
                Answer::Found {
                    inode,
                    name,
                    ipv4,
                    ipv6,
                } => {
                    let mut files = files.into_iter();
                    let mut next = || {
                        files
                            .next()
                            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
                    };
                    let (handle, socket) = (next()?, next()?);
                    let sysctls = Sysctls {
                        ipv4: ipv4.then(&mut next).transpose()?,
                        ipv6: ipv6.then(&mut next).transpose()?,
                    };
                    scan.opened.push(Opened {
                        inode,
                        name,
                        handle: File::from(handle),
                        socket: RouteSocket::adopt(socket)?,
                        sysctls,
                    });
                }
                Answer::Done {
                    failures,
                    beyond_limit,
                    hidden,
                    gone,
                    named,
                } => {
                    scan.failures = failures;
                    scan.beyond_limit = beyond_limit;
                    scan.hidden = hidden;
                    scan.gone = gone;
                    scan.named = named;
                    return Ok(self.scan.take());
                }
            }
        }
        Ok(None)
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        // It has nothing to tidy up. Where it is dead already, this only collects it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the helper process does: answers the questions on its standard input until nobody asks any more.
pub fn serve() -> anyhow::Result<()> {
    // Should we be killed, our end of the socket closes too; this also ends a helper that is busy just then.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    privilege::drop_in_this_thread(&KEPT)?;
    raise_file_limit();
    let stdin = io::stdin();
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received = receive(stdin.as_fd(), &mut buffer, MsgFlags::empty());
        let known: Known = match received {
            Ok((question, _)) => question,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let scan = netns::scan(&known, NETNS_MAX)?;
        for Opened {
            inode,
            name,
            handle,
            socket,
            sysctls: Sysctls { ipv4, ipv6 },
        } in scan.opened
        {
            let mut files = vec![handle.as_raw_fd(), socket.as_fd().as_raw_fd()];
            files.extend([&ipv4, &ipv6].into_iter().flatten().map(AsRawFd::as_raw_fd));
            let found = Answer::Found {
                inode,
                name,
                ipv4: ipv4.is_some(),
                ipv6: ipv6.is_some(),
            };
            send(stdin.as_fd(), &found, &files, MsgFlags::empty())?;
        }
        let done = Answer::Done {
            failures: scan.failures,
            beyond_limit: scan.beyond_limit,
            hidden: scan.hidden,
            gone: scan.gone,
            named: scan.named,
        };
        send(stdin.as_fd(), &done, &[], MsgFlags::empty())?;
    }
}

/// Sends one message with these files.
fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    files: &[RawFd],
    flags: MsgFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let rights = [ControlMessage::ScmRights(files)];
    let control: &[ControlMessage<'_>] = if files.is_empty() { &[] } else { &rights };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    let slices = [IoSlice::new(&bytes)];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &slices, control, flags, None)?;
    Ok(())
}

/// Receives one message and the files that came with it. `UnexpectedEof` says that the other side is gone.
fn receive<T: for<'de> Deserialize<'de>>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: MsgFlags,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut control = cmsg_space!([RawFd; FILES_MAX]);
    let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
    let mut slices = [IoSliceMut::new(buffer)];
    let message = loop {
        let received =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags);
        match received {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let length = message.bytes;
    let mut files = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the kernel has just installed these descriptors for this message, so they are open and nobody
            // else in this process owns them.
            files.extend(
                received
                    .iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }),
            );
        }
    }
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&buffer[..length])?, files))
}
