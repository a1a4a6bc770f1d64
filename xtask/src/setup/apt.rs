//! A private apt: another suite of the archive that this machine already trusts, without touching the system.
//!
//! The archive's address and keys come from the machine's own sources, and signatures are checked. State, lists
//! and downloads live in a directory of ours, so `apt` itself never sees the other suite. No root is needed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::command;

/// An apt configuration of its own below one directory.
pub struct PrivateApt {
    directory: PathBuf,
}

impl PrivateApt {
    /// Derives a configuration for one suite from this Debian machine's own sources.
    pub fn for_suite(directory: &Path, suite: &str) -> Result<Self> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let codename = debian_codename(&release).context("this is not a Debian machine")?;
        let derived = own_sources()
            .iter()
            .find_map(|path| {
                let text = fs::read_to_string(path).ok()?;
                Derived::from_source(path, &text, &codename, suite)
            })
            .with_context(|| {
                format!("no apt source of this machine names the suite {codename} of Debian")
            })?;

        let sources = directory.join("etc");
        if sources.exists() {
            fs::remove_dir_all(&sources)?;
        }
        for wanted in ["etc", "state/lists/partial", "cache/archives/partial"] {
            let wanted = directory.join(wanted);
            fs::create_dir_all(&wanted)
                .with_context(|| format!("cannot make {}", wanted.display()))?;
        }
        fs::write(sources.join(derived.file_name()), derived.text())?;
        Ok(Self {
            directory: directory.to_path_buf(),
        })
    }

    /// Fetches the suite's package lists.
    pub fn update(&self) -> Result<()> {
        command::run(self.program("apt-get").args(["-qq", "update"]))
    }

    /// Every version of a package that the suite has, the newest first.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let table = command::capture(self.program("apt-cache").args(["madison", package]))?;
        Ok(versions_in(&table, package))
    }

    /// The names of the packages that the suite has and that begin so, in no order.
    pub fn names(&self, beginning: &str) -> Result<Vec<String>> {
        let names = command::capture(self.program("apt-cache").args(["pkgnames", beginning]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Downloads one version and returns where it is.
    pub fn download(&self, package: &str, version: &str) -> Result<PathBuf> {
        let archives = self.directory.join("cache/archives");
        command::run(
            self.program("apt-get")
                .args(["-qq", "download", &format!("{package}={version}")])
                .current_dir(&archives),
        )?;
        // apt escapes the epoch's colon in the name, so the file is found rather than guessed.
        let prefix = format!("{package}_");
        for entry in fs::read_dir(&archives)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name.ends_with(".deb") {
                return Ok(archives.join(&*name));
            }
        }
        bail!(
            "apt-get downloaded {package} {version}, but there is no such file in {}",
            archives.display()
        )
    }

    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut option = |name: &str, value: &Path| {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        };
        option("Dir::Etc::sourcelist", Path::new("/dev/null"));
        option("Dir::Etc::sourceparts", &self.directory.join("etc"));
        option("Dir::State", &self.directory.join("state"));
        option("Dir::Cache", &self.directory.join("cache"));
        option("Acquire::Languages", Path::new("none"));
        if nix::unistd::geteuid().is_root() {
            // apt's own user cannot enter root's home, where the cache may be, and would complain.
            option("APT::Sandbox::User", Path::new("root"));
        }
        command
    }
}

/// The upstream release in a Debian version: `1.95.0` of `1.95.0+dfsg1-2~bpo13+1`.
pub fn upstream_release(version: &str) -> &str {
    let version = version
        .split_once(':')
        .map_or(version, |(_epoch, version)| version);
    let upstream = version
        .rsplit_once('-')
        .map_or(version, |(upstream, _revision)| upstream);
    upstream
        .split_once('+')
        .map_or(upstream, |(release, _repacked)| release)
}

/// The versions in the table that `apt-cache madison` prints.
fn versions_in(table: &str, package: &str) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for line in table.lines() {
        let mut cells = line.split('|').map(str::trim);
        if cells.next() == Some(package)
            && let Some(version) = cells.next()
            && !versions.iter().any(|known| known == version)
        {
            versions.push(version.to_owned());
        }
    }
    versions
}

/// The code name in `/etc/os-release`, if the system is Debian itself.
fn debian_codename(os_release: &str) -> Option<String> {
    let field = |name: &str| {
        os_release.lines().find_map(|line| {
            Some(
                line.strip_prefix(name)?
                    .strip_prefix('=')?
                    .trim_matches('"')
                    .to_owned(),
            )
        })
    };
    (field("ID")? == "debian").then(|| field("VERSION_CODENAME"))?
}

/// The files that name apt sources. Debian's own come first, since others may use its suites' names.
fn own_sources() -> Vec<PathBuf> {
    let parts = Path::new("/etc/apt/sources.list.d");
    let mut files = vec![
        parts.join("debian.sources"),
        PathBuf::from("/etc/apt/sources.list"),
    ];
    let mut others: Vec<PathBuf> = fs::read_dir(parts)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| !files.contains(path))
        .collect();
    others.sort();
    files.extend(others);
    files
}

/// A source like one of the machine's, for another suite.
#[derive(Debug, PartialEq)]
enum Derived {
    /// A stanza of a `.sources` file.
    Stanza(String),
    /// A line of a `.list` file.
    Line(String),
}

impl Derived {
    /// Looks in one file for the archive's entry for `codename`, and turns it into one for `suite`.
    fn from_source(path: &Path, text: &str, codename: &str, suite: &str) -> Option<Self> {
        match path.extension()?.to_str()? {
            "sources" => stanza_for(text, codename, suite).map(Self::Stanza),
            "list" => line_for(text, codename, suite).map(Self::Line),
            _ => None,
        }
    }

    fn file_name(&self) -> &'static str {
        match self {
            Self::Stanza(_) => "private.sources",
            Self::Line(_) => "private.list",
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Stanza(text) | Self::Line(text) => text,
        }
    }
}

/// The first enabled binary stanza with `codename` and the component `main`, with `Suites` replaced.
fn stanza_for(text: &str, codename: &str, suite: &str) -> Option<String> {
    let mut stanzas: Vec<Vec<&str>> = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if let Some(stanza) = stanzas.last_mut() {
            stanza.push(line);
        }
    }
    stanzas.iter().find_map(|lines| {
        let fields = fields_of(lines)?;
        let has = |name: &str, word: &str| {
            fields.iter().any(|(field, value)| {
                field.eq_ignore_ascii_case(name)
                    && value.split_whitespace().any(|each| each == word)
            })
        };
        if !has("Types", "deb")
            || !has("Suites", codename)
            || !has("Components", "main")
            || has("Enabled", "no")
        {
            return None;
        }
        let mut derived = String::new();
        for (field, value) in &fields {
            let value = match field.to_ascii_lowercase().as_str() {
                "suites" => suite,
                "components" => "main",
                "types" => "deb",
                _ => value,
            };
            for part in [field, ": ", value, "\n"] {
                derived.push_str(part);
            }
        }
        Some(derived)
    })
}

/// A stanza's fields in order; a value keeps its continuation lines.
fn fields_of(lines: &[&str]) -> Option<Vec<(String, String)>> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in lines {
        if line.starts_with([' ', '\t']) {
            let (_, value) = fields.last_mut()?;
            value.push('\n');
            value.push_str(line);
        } else {
            let (field, value) = line.split_once(':')?;
            fields.push((field.trim().to_owned(), value.trim().to_owned()));
        }
    }
    Some(fields)
}

/// The first `deb` line with `codename` and the component `main`, for another suite.
fn line_for(text: &str, codename: &str, suite: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let entry = line.split('#').next()?.trim().strip_prefix("deb")?;
        if !entry.starts_with([' ', '\t']) {
            return None;
        }
        let entry = entry.trim_start();
        let (options, entry) = match entry.strip_prefix('[') {
            Some(rest) => {
                let (options, entry) = rest.split_once(']')?;
                (format!("[{options}] "), entry)
            }
            None => (String::new(), entry),
        };
        let mut words = entry.split_whitespace();
        let address = words.next()?;
        if words.next()? != codename
            || !words.any(|component| component == "main")
            || address.starts_with("cdrom:")
        {
            return None;
        }
        Some(format!("deb {options}{address} {suite} main\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_in_a_debian_version() {
        assert_eq!(upstream_release("1.95.0+dfsg1-2~bpo13+1"), "1.95.0");
        assert_eq!(upstream_release("1:22.1.8-1~deb12u1"), "22.1.8");
        assert_eq!(upstream_release("1.95.0"), "1.95.0");
        assert_ne!(upstream_release("1.95.0~beta.3+dfsg1-1"), "1.95.0");
        assert_ne!(upstream_release("1.95.1+dfsg1-1"), "1.95.0");
    }

    #[test]
    fn versions_are_the_second_column() {
        let table = "  rust-src | 1.97.1+dfsg1-1~bpo13+1 | http://mirror.test/debian trixie-backports/main amd64 Packages\n\
                     \x20 rust-src | 1.95.0+dfsg1-2~bpo13+1 | http://mirror.test/debian trixie-backports/main amd64 Packages\n\
                     \x20 rust-src | 1.95.0+dfsg1-2~bpo13+1 | http://mirror.test/debian trixie-backports/main Sources\n\
                     \x20 rust-src-docs | 9 | x\n\nN: a notice\n";
        assert_eq!(
            versions_in(table, "rust-src"),
            ["1.97.1+dfsg1-1~bpo13+1", "1.95.0+dfsg1-2~bpo13+1"]
        );
    }

    #[test]
    fn only_debian_itself_has_debians_suites() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(debian_codename(debian).as_deref(), Some("bookworm"));
        let derivative = "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n";
        assert_eq!(debian_codename(derivative), None);
        assert_eq!(debian_codename(""), None);
    }

    #[test]
    fn a_stanza_keeps_address_and_keys() {
        let text = "# ours\nTypes: deb deb-src\n# http://elsewhere.test/old\nURIs: http://mirror.test/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main contrib\n\
                    Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
                    Types: deb\nURIs: http://mirror.test/debian-security\nSuites: bookworm-security\nComponents: main\n";
        assert_eq!(
            stanza_for(text, "bookworm", "trixie-backports").as_deref(),
            Some(
                "Types: deb\nURIs: http://mirror.test/debian\nSuites: trixie-backports\nComponents: main\n\
                 Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            )
        );
    }

    #[test]
    fn a_key_inside_the_stanza_stays_whole() {
        let text = "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\nComponents: main\n\
                    Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n";
        let derived = stanza_for(text, "bookworm", "trixie-backports").unwrap();
        assert!(derived.ends_with(
            "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----\n"
        ));
    }

    #[test]
    fn stanzas_that_do_not_serve_are_passed_over() {
        for text in [
            "",
            "Types: deb\nURIs: http://a.test\nSuites: nodistro\nComponents: main\n",
            "Types: deb-src\nURIs: http://a.test\nSuites: bookworm\nComponents: main\n",
            "Types: deb\nURIs: http://a.test\nSuites: bookworm\nComponents: stable\n",
            "Enabled: no\nTypes: deb\nURIs: http://a.test\nSuites: bookworm\nComponents: main\n",
            " a continuation of nothing\nTypes: deb\n",
        ] {
            assert_eq!(
                stanza_for(text, "bookworm", "trixie-backports"),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn a_one_line_source_keeps_its_options() {
        let text = "# deb http://old.test/debian bookworm main\n\
                    deb-src http://mirror.test/debian bookworm main\n\
                    deb cdrom:[Debian]/ bookworm main\n\
                    deb http://security.test/debian-security bookworm-security main\n\
                    deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.test/debian bookworm main contrib # ours\n";
        assert_eq!(
            line_for(text, "bookworm", "trixie-backports").as_deref(),
            Some(
                "deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.test/debian trixie-backports main\n"
            )
        );
        assert_eq!(
            line_for(
                "deb\thttp://mirror.test/debian  bookworm\tmain",
                "bookworm",
                "trixie-backports"
            )
            .as_deref(),
            Some("deb http://mirror.test/debian trixie-backports main\n")
        );
    }

    #[test]
    fn lines_that_do_not_serve_are_passed_over() {
        for text in [
            "",
            "deb",
            "deb http://a.test",
            "deb [x http://a.test bookworm main",
            "debug bookworm main",
        ] {
            assert_eq!(
                line_for(text, "bookworm", "trixie-backports"),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn the_kind_of_file_decides_how_it_is_read() {
        let line = "deb http://mirror.test/debian bookworm main";
        let derive = |path: &str| {
            Derived::from_source(Path::new(path), line, "bookworm", "trixie-backports")
        };
        assert_eq!(
            derive("/etc/apt/sources.list").unwrap().file_name(),
            "private.list"
        );
        assert_eq!(derive("/etc/apt/sources.list.d/debian.sources"), None);
        assert_eq!(derive("/etc/apt/sources.list.d/debian.list.save"), None);
    }
}
