//! What still needs privilege while a trace runs: to enter namespaces that are born later, and to see which process holds
//! a socket. tracer itself has none by then, so a second process keeps it. That process reads nothing but `/proc`,
//! `/run/netns`, the names in `/var/log/pods` and our questions, answers them, hands over the open sockets and the handle of
//! each namespace that we do not know, and dies with us.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem,
    os::{
        fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use caps::Capability;
use nix::{
    cmsg_space,
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
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
    processes::{Holders, Node, Search},
    raise_file_limit,
    rtnetlink::RouteSocket,
    sockdiag::DiagSocket,
    sysctls::Sysctls,
};

/// By this name a program knows that it is to be the helper.
pub const NETNS_HELPER: &str = "tracer-netns";

/// What the helper needs: to enter a namespace, and to look at the namespaces and the descriptors of other users' processes
/// (the directory of descriptors may be read by its owner only).
const KEPT: [Capability; 3] = [
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
];

/// The longest message: all namespaces that are known and none of them named, or as many failures and 256 names.
pub(super) const MESSAGE_BYTES_MAX: usize = 192 * 1024;

/// The most files that come with a message.
const FILES_MAX: usize = 5;

/// What the helper is asked.
#[derive(Debug, Serialize, Deserialize)]
enum Question {
    /// For every namespace that is not known.
    Namespaces(Known),
    /// For the holders of sockets and devices.
    Holders(Search),
}

/// What the helper says.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// A namespace; its handle and its rtnetlink socket come along, and what there is of the others.
    Found {
        inode: u64,
        name: Option<String>,
        diag: bool,
        ipv4: bool,
        ipv6: bool,
    },
    /// The holders that were found.
    Holders(Holders),
    /// That was every namespace.
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
    /// The question that is not answered yet.
    asked: Option<Asked>,
}

/// A question that waits for its answer.
#[derive(Debug)]
enum Asked {
    /// And the namespaces that were found so far.
    Namespaces(Scan),
    Holders,
}

/// A whole answer.
#[derive(Debug)]
pub(super) enum Answered {
    Namespaces(Scan),
    Holders(Holders),
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
            asked: None,
        })
    }

    /// Whether a question is not answered yet.
    pub(super) fn busy(&self) -> bool {
        self.asked.is_some()
    }

    /// Asks for every namespace that is not known, without waiting.
    pub(super) fn ask_for_namespaces(&mut self, known: Known) -> io::Result<()> {
        self.ask(&Question::Namespaces(known))?;
        self.asked = Some(Asked::Namespaces(Scan::default()));
        Ok(())
    }

    /// Asks who holds sockets and devices, without waiting.
    pub(super) fn ask_for_holders(&mut self, search: Search) -> io::Result<()> {
        self.ask(&Question::Holders(search))?;
        self.asked = Some(Asked::Holders);
        Ok(())
    }

    fn ask(&mut self, question: &Question) -> io::Result<()> {
        send(self.socket.as_fd(), question, &[], MsgFlags::MSG_DONTWAIT)
    }

    /// The answer, once the helper is done; does not wait.
    pub(super) fn answer(&mut self) -> io::Result<Option<Answered>> {
        while let Some(asked) = &mut self.asked {
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
            match (answer, asked) {
                (
                    Answer::Found {
                        inode,
                        name,
                        diag,
                        ipv4,
                        ipv6,
                    },
                    Asked::Namespaces(scan),
                ) => {
                    let mut files = files.into_iter();
                    let mut next = || {
                        files
                            .next()
                            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
                    };
                    let (handle, socket) = (next()?, next()?);
                    let diag = diag.then(&mut next).transpose()?;
                    let sysctls = Sysctls {
                        ipv4: ipv4.then(&mut next).transpose()?,
                        ipv6: ipv6.then(&mut next).transpose()?,
                    };
                    scan.opened.push(Opened {
                        inode,
                        name,
                        handle: File::from(handle),
                        socket: RouteSocket::adopt(socket)?,
                        diag: diag.map(DiagSocket::adopt).transpose()?,
                        sysctls,
                    });
                }
                (
                    Answer::Done {
                        failures,
                        beyond_limit,
                        hidden,
                        gone,
                        named,
                    },
                    Asked::Namespaces(scan),
                ) => {
                    let scan = Scan {
                        opened: mem::take(&mut scan.opened),
                        failures,
                        beyond_limit,
                        hidden,
                        gone,
                        named,
                    };
                    self.asked = None;
                    return Ok(Some(Answered::Namespaces(scan)));
                }
                (Answer::Holders(holders), Asked::Holders) => {
                    self.asked = None;
                    return Ok(Some(Answered::Holders(holders)));
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(None)
    }

    /// Waits until the helper has said something, or the time is up.
    pub(super) fn wait(&self, at_most: Duration) -> io::Result<()> {
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut socket, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
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
        let question: Question = match received {
            Ok((question, _)) => question,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match question {
            Question::Namespaces(known) => look_for_namespaces(&known, stdin.as_fd())?,
            Question::Holders(search) => {
                let holders = Answer::Holders(Node::this().search(&search));
                send(stdin.as_fd(), &holders, &[], MsgFlags::empty())?;
            }
        }
    }
}

fn look_for_namespaces(known: &Known, to: BorrowedFd<'_>) -> io::Result<()> {
    let scan = netns::scan(known, NETNS_MAX)?;
    for Opened {
        inode,
        name,
        handle,
        socket,
        diag,
        sysctls: Sysctls { ipv4, ipv6 },
    } in scan.opened
    {
        let mut files = vec![handle.as_raw_fd(), socket.as_fd().as_raw_fd()];
        files.extend(diag.as_ref().map(|diag| diag.as_fd().as_raw_fd()));
        files.extend([&ipv4, &ipv6].into_iter().flatten().map(AsRawFd::as_raw_fd));
        let found = Answer::Found {
            inode,
            name,
            diag: diag.is_some(),
            ipv4: ipv4.is_some(),
            ipv6: ipv6.is_some(),
        };
        send(to, &found, &files, MsgFlags::empty())?;
    }
    let done = Answer::Done {
        failures: scan.failures,
        beyond_limit: scan.beyond_limit,
        hidden: scan.hidden,
        gone: scan.gone,
        named: scan.named,
    };
    send(to, &done, &[], MsgFlags::empty())
}

/// Sends one message with these files.
pub(super) fn send(
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
pub(super) fn receive<T: for<'de> Deserialize<'de>>(
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
