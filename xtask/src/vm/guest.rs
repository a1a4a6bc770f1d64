//! One run of a guest in QEMU: started, listened to, and ended when it is done, dead or silent.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};

/// How often a silent guest is looked after.
const POLL: Duration = Duration::from_millis(200);

/// How much of the console an error shows.
const TAIL_LINES: usize = 40;

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accel {
    /// QEMU itself: runs everywhere, an order of magnitude slower
    Tcg,
    /// This machine's processor, where /dev/kvm works
    Kvm,
}

/// How long a guest may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From start to power-off.
    pub whole: Duration,
    /// Without a word from the kernel or the command.
    pub silence: Duration,
}

/// The lines that QEMU writes to files: the kernel's console, and the exit code of the command.
struct Lines {
    console: PathBuf,
    status: PathBuf,
}

/// Starts a guest, hands what its command says to `output` as it comes, and returns the command's exit code.
pub fn run(
    accel: Accel,
    image: &Path,
    initramfs: &Path,
    limits: Limits,
    output: &mut dyn Write,
) -> Result<u8> {
    let directory = tempfile::tempdir()?;
    let lines = Lines {
        console: directory.path().join("console"),
        status: directory.path().join("status"),
    };
    let mut qemu = qemu(accel, image, initramfs, &lines);
    watch(&mut qemu, &lines, limits, output).map_err(|error| match lines.tail() {
        Some(tail) => anyhow!("{error:#}; the end of its console:\n{tail}"),
        None => error.context("the guest's console is empty"),
    })
}

fn qemu(accel: Accel, image: &Path, initramfs: &Path, lines: &Lines) -> Command {
    // A guest must not outlive the task, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    match accel {
        Accel::Tcg => command.args(["-accel", "tcg,thread=multi", "-cpu", "max"]),
        Accel::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
    };
    command
        .args(["-m", "1500", "-smp", "2", "-no-reboot", "-nodefaults"])
        .args(["-display", "none", "-monitor", "none"])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initramfs);
    // A kernel that finds a fault in itself stops at once, and `-no-reboot` ends QEMU. Mitigations only cost time here.
    command.args([
        "-append",
        "console=ttyS0 panic=-1 oops=panic quiet mitigations=off random.trust_cpu=on",
    ]);
    for line in [
        format!("file:{}", lines.console.display()),
        "stdio".to_owned(),
        format!("file:{}", lines.status.display()),
    ] {
        command.args(["-serial", &line]);
    }
    command
}

/// Listens to a guest until it ends, or ends it.
fn watch(qemu: &mut Command, lines: &Lines, limits: Limits, output: &mut dyn Write) -> Result<u8> {
    let mut child = qemu
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start QEMU")?;
    let said = child.stdout.take().context("no pipe from QEMU")?;
    let ended = listen(&stream(said), lines, limits, output);
    if ended.is_err() {
        end(&mut child);
    }
    ended?;
    let status = child.wait().context("cannot wait for QEMU")?;
    let code = fs::read_to_string(&lines.status).unwrap_or_default();
    match code.trim().parse() {
        Ok(code) => Ok(code),
        // A panic ends QEMU as a power-off does; only the command's exit code is missing.
        Err(_) if status.success() => bail!("the guest ended without its command's exit code"),
        Err(_) => bail!("QEMU ended with {status}"),
    }
}

/// What a program writes, as it comes.
fn stream(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len) = from.read(&mut buffer) {
            if len == 0 || sender.send(buffer[..len].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

fn listen(
    said: &Receiver<Vec<u8>>,
    lines: &Lines,
    limits: Limits,
    output: &mut dyn Write,
) -> Result<()> {
    let begin = Instant::now();
    let mut heard = begin;
    let mut console_len = 0;
    loop {
        match said.recv_timeout(POLL) {
            Ok(bytes) => {
                heard = Instant::now();
                output.write_all(&bytes)?;
                output.flush()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let len = fs::metadata(&lines.console).map_or(0, |metadata| metadata.len());
        if len != console_len {
            console_len = len;
            heard = Instant::now();
        }
        if heard.elapsed() > limits.silence {
            bail!(
                "the guest said nothing for {} s, so it was ended",
                limits.silence.as_secs()
            );
        }
        if begin.elapsed() > limits.whole {
            bail!(
                "the guest was not done after {} s, so it was ended",
                limits.whole.as_secs()
            );
        }
    }
}

/// Ends QEMU. That it has ended already is as good.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Lines {
    /// The last lines of the console, without what could move a terminal's cursor.
    fn tail(&self) -> Option<String> {
        let bytes = fs::read(&self.console).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.chars().filter(|each| !each.is_control()).collect())
            .collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        (!tail.is_empty()).then(|| tail.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        whole: Duration::from_secs(20),
        silence: Duration::from_secs(10),
    };

    /// Runs a shell script in QEMU's place: `$1` is the console, `$2` the status.
    fn watched(script: &str, limits: Limits) -> (Result<u8>, String, Option<String>) {
        let directory = tempfile::tempdir().unwrap();
        let lines = Lines {
            console: directory.path().join("console"),
            status: directory.path().join("status"),
        };
        let mut output = Vec::new();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, "guest"])
            .args([&lines.console, &lines.status]);
        let result = watch(&mut shell, &lines, limits, &mut output);
        (result, String::from_utf8(output).unwrap(), lines.tail())
    }

    #[test]
    fn the_commands_exit_code_and_words_are_passed_on() {
        let (code, said, _) = watched("echo word; echo 7 > $2", LIMITS);
        assert_eq!((code.unwrap(), said.as_str()), (7, "word\n"));
    }

    #[test]
    fn a_panic_is_an_error_with_the_consoles_tail() {
        let (code, _, tail) = watched(r"printf 'a\n\033[2JKernel panic\r\n' > $1", LIMITS);
        let error = code.unwrap_err().to_string();
        assert!(error.contains("without its command's exit code"), "{error}");
        assert_eq!(tail.unwrap(), "a\n[2JKernel panic");
    }

    #[test]
    fn a_guest_that_is_silent_is_ended() {
        let limits = Limits {
            silence: Duration::from_millis(300),
            ..LIMITS
        };
        let begin = Instant::now();
        let (code, ..) = watched("exec sleep 60", limits);
        assert!(code.unwrap_err().to_string().contains("said nothing"));
        assert!(begin.elapsed() < LIMITS.silence);
    }

    #[test]
    fn a_guest_that_never_ends_is_ended() {
        let limits = Limits {
            whole: Duration::from_millis(500),
            ..LIMITS
        };
        let endless = "while :; do echo again; sleep 0.1; done";
        let (code, said, _) = watched(endless, limits);
        assert!(code.unwrap_err().to_string().contains("not done"));
        assert!(said.contains("again"));
    }

    #[test]
    fn a_qemu_that_does_not_start_says_its_status() {
        let (code, ..) = watched("exit 1", LIMITS);
        assert!(code.unwrap_err().to_string().contains("exit status: 1"));
    }
}
