//! The initramfs of a guest: the kernel's modules, the lab's tools with the libraries they are linked with, tracer and
//! its tests, and the script that the kernel starts.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use cpio::newc::{Builder, ModeFileType, trailer};

use super::kernel::Unpacked;
use crate::command;

/// What the kernel starts.
const INIT: &str = include_str!("init.sh");

/// Where the script finds the command.
const COMMAND: &str = "command";

/// Where programs of this build are.
const PROGRAMS: &str = "usr/bin";

/// Without these there is no guest.
const NEEDED: &[&str] = &["bash", "busybox", "modprobe"];

/// What people who look around in a guest are glad of, where this machine has it.
const WELCOME: &[&str] = &[
    "ss",
    "iptables",
    "ip6tables",
    "wg",
    "ping",
    "iperf3",
    "conntrack",
    "ethtool",
    "strace",
];

/// Data of the programs above, where this machine has it.
const DATA: &[&str] = &[
    "/etc/iproute2",
    "/etc/ld.so.cache",
    "/etc/protocols",
    "/etc/services",
    "/usr/lib/tc",
    "/usr/lib/x86_64-linux-gnu/xtables",
    "/usr/share/iproute2",
];

/// Users that programs of the lab become.
const USERS: &str = "root:x:0:0::/root:/bin/sh\ntcpdump:x:100:100::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n";
const GROUPS: &str = "root:x:0:\ntcpdump:x:100:\nnogroup:x:65534:\n";

/// One thing in the archive.
enum Entry {
    Directory,
    /// A copy of a file of this machine.
    Copy(PathBuf),
    Text {
        text: String,
        mode: u32,
    },
    Link(&'static str),
    /// `/dev/console`, which the kernel opens for what it starts.
    Console,
}

/// An archive in the making. Paths have no leading slash; a directory sorts before what is in it.
pub struct Initramfs {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Initramfs {
    /// Everything but the command.
    pub fn new(
        kernel: &Unpacked,
        lab_programs: &[&str],
        built: &[(&str, PathBuf)],
    ) -> Result<Self> {
        let mut archive = Self {
            entries: BTreeMap::new(),
        };
        for directory in [
            "bin",
            "dev",
            "mnt",
            "proc",
            "root",
            "run/netns",
            "sys",
            "tmp",
            "var/tmp",
        ] {
            archive.add_directory(Path::new(directory));
        }
        archive.add("dev/console", Entry::Console);
        archive.add("init", Entry::script(INIT));
        archive.add("etc/passwd", Entry::text(USERS));
        archive.add("etc/group", Entry::text(GROUPS));
        archive.add("etc/nsswitch.conf", Entry::text("hosts: files\n"));
        archive.add(
            "etc/hosts",
            Entry::text("127.0.0.1 localhost\n::1 localhost\n"),
        );
        archive.add("etc/mtab", Entry::Link("/proc/mounts"));

        archive.add_tree(&kernel.root.join("lib/modules"), Path::new("lib/modules"))?;
        for program in NEEDED.iter().chain(lab_programs) {
            let path = command::find(program)
                .with_context(|| format!("a guest needs `{program}`, which is not here"))?;
            archive.add_program(program, &path)?;
        }
        // busybox's own shell would prefer its own `ip` and `tc`.
        archive.add("usr/bin/sh", Entry::Link("bash"));
        for program in WELCOME {
            if let Some(path) = command::find(program) {
                archive.add_program(program, &path)?;
            }
        }
        for (name, path) in built {
            archive.add_program(name, path)?;
        }
        for data in DATA {
            archive.add_tree(Path::new(data), Path::new(data.trim_start_matches('/')))?;
        }
        Ok(archive)
    }

    /// Says what the guest is to run.
    pub fn set_command(&mut self, command: &[String]) {
        self.add(COMMAND, Entry::script(&script_of(command)));
    }

    /// Writes the archive as the kernel wants it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        self.write_to(BufWriter::new(file))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn write_to(&self, mut output: impl Write) -> Result<()> {
        for (inode, (path, entry)) in (1..).zip(&self.entries) {
            let name = path.to_str().context("a path that is not text")?;
            entry.write(name, inode, &mut output)?;
        }
        trailer(output)?.flush()?;
        Ok(())
    }

    fn add(&mut self, path: impl Into<PathBuf>, entry: Entry) {
        let path = path.into();
        if let Some(parent) = path.parent() {
            self.add_directory(parent);
        }
        self.entries.insert(path, entry);
    }

    fn add_directory(&mut self, path: &Path) {
        for ancestor in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            self.entries
                .entry(ancestor.to_owned())
                .or_insert(Entry::Directory);
        }
    }

    /// Adds what is at `source`, links followed, if anything is there.
    fn add_tree(&mut self, source: &Path, place: &Path) -> Result<()> {
        if source.is_dir() {
            self.add_directory(place);
            for entry in fs::read_dir(source)? {
                let name = entry?.file_name();
                self.add_tree(&source.join(&name), &place.join(&name))?;
            }
        } else if source.is_file() {
            self.add(place, Entry::Copy(source.to_owned()));
        }
        Ok(())
    }

    /// Adds a program under a name, with the libraries it is linked with where the loader looks for them.
    fn add_program(&mut self, name: &str, path: &Path) -> Result<()> {
        // One program may stand behind several names, and look at its own.
        self.add(Path::new(PROGRAMS).join(name), Entry::Copy(path.to_owned()));
        for library in libraries_of(path)? {
            let place = library
                .strip_prefix("/")
                .with_context(|| format!("{} needs {}", path.display(), library.display()))?
                .to_owned();
            self.add(place, Entry::Copy(library));
        }
        Ok(())
    }
}

impl Entry {
    fn text(text: &str) -> Self {
        Self::Text {
            text: text.to_owned(),
            mode: 0o644,
        }
    }

    fn script(text: &str) -> Self {
        Self::Text {
            text: text.to_owned(),
            mode: 0o755,
        }
    }

    fn write(&self, name: &str, inode: u32, output: &mut impl Write) -> Result<()> {
        let entry = Builder::new(name).ino(inode).nlink(1);
        let (entry, data): (Builder, &[u8]) = match self {
            Self::Directory => (
                entry
                    .mode(0o755)
                    .set_mode_file_type(ModeFileType::Directory),
                &[],
            ),
            Self::Text { text, mode } => (
                entry.mode(*mode).set_mode_file_type(ModeFileType::Regular),
                text.as_bytes(),
            ),
            Self::Link(target) => (
                entry.mode(0o777).set_mode_file_type(ModeFileType::Symlink),
                target.as_bytes(),
            ),
            Self::Console => (
                entry
                    .mode(0o600)
                    .set_mode_file_type(ModeFileType::Char)
                    .rdev_major(5)
                    .rdev_minor(1),
                &[],
            ),
            Self::Copy(path) => return copy(path, entry, output),
        };
        let mut writer = entry.write(output, u32::try_from(data.len())?);
        writer.write_all(data)?;
        writer.finish()?;
        Ok(())
    }
}

fn copy(path: &Path, entry: Builder, output: &mut impl Write) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let metadata = file.metadata()?;
    let mode = if metadata.permissions().mode() & 0o111 == 0 {
        0o644
    } else {
        0o755
    };
    let mut writer = entry
        .mode(mode)
        .set_mode_file_type(ModeFileType::Regular)
        .write(output, u32::try_from(metadata.len())?);
    io::copy(&mut file, &mut writer)?;
    writer.finish()?;
    Ok(())
}

/// The libraries of a program, and the loader itself, where the loader finds them; none for a static program.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot start ldd")?;
    // ldd fails at a static program, and at a script.
    if !output.status.success() {
        return Ok(Vec::new());
    }
    libraries_in(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("the libraries of {}", program.display()))
}

/// The paths in what `ldd` prints.
fn libraries_in(text: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, path) = line.split_once(" => ").unwrap_or((line, line));
        if path.starts_with("not found") {
            bail!("{name} is not found");
        }
        let path = path.split(" (").next().unwrap_or(path);
        if path.starts_with('/') {
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

/// A script that becomes the command, whatever its words are.
fn script_of(command: &[String]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    format!("#!/usr/bin/bash\nexec {}\n", words.join(" "))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use cpio::newc::Reader;

    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd5a5f2000)\n\
                    \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f3b1c000000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f3b1c2d5000)\n";
        assert_eq!(
            libraries_in(text).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libm.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
            .map(PathBuf::from)
        );
        assert!(libraries_in("\tlibx.so.1 => not found\n").is_err());
        assert!(libraries_in("\tstatically linked\n").unwrap().is_empty());
    }

    #[test]
    fn a_command_comes_through_a_shell_as_it_is() {
        let words = ["printf", "%s,", "it's", "$HOME *", "\\n"].map(str::to_owned);
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("command");
        fs::write(&script, script_of(&words)).unwrap();
        let said = command::capture(Command::new("sh").arg(&script)).unwrap();
        assert_eq!(said, "it's,$HOME *,\\n,");
    }

    #[test]
    fn the_archive_holds_what_was_put_in_with_directories_first() {
        let mut archive = Initramfs {
            entries: BTreeMap::new(),
        };
        archive.add("a/b/c", Entry::text("text"));
        archive.add("a/link", Entry::Link("b/c"));
        archive.add("dev/console", Entry::Console);
        archive
            .add_program("sh", &command::find("sh").unwrap())
            .unwrap();
        let mut bytes = Vec::new();
        archive.write_to(&mut bytes).unwrap();

        let mut rest = bytes.as_slice();
        let mut found = BTreeMap::new();
        let mut names = Vec::new();
        loop {
            let mut entry = Reader::new(rest).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            names.push(entry.entry().name().to_owned());
            found.insert(
                entry.entry().name().to_owned(),
                (entry.entry().mode(), data),
            );
            rest = entry.finish().unwrap();
        }
        assert_eq!(found["a"].0, 0o040_755);
        assert_eq!(found["a/b/c"], (0o100_644, b"text".to_vec()));
        assert_eq!(found["a/link"], (0o120_777, b"b/c".to_vec()));
        assert_eq!(found["dev/console"].0, 0o020_600);
        assert_eq!(
            found["usr/bin/sh"],
            (0o100_755, fs::read("/bin/sh").unwrap())
        );
        let place = |wanted| names.iter().position(|name| name == wanted);
        assert!(place("a") < place("a/b") && place("a/b") < place("a/b/c"));
    }
}
