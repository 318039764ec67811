//! Which transports may be used, by UCX's names.

use super::{environment::Word, nearest::did_you_mean, value::Text};
use crate::transport::registry;

/// Names that stand for several transports, or for one under another name.
const ALIASES: [(&str, &[&str]); 15] = [
    ("shm", &["shm", "cma"]),
    ("sm", &["shm", "cma"]),
    ("mm", &["shm"]),
    ("posix", &["shm"]),
    ("sysv", &["shm"]),
    ("ib", &["rc_verbs", "ud_verbs", "dc_mlx5"]),
    ("rc", &["rc_verbs", "rc_mlx5"]),
    ("rc_v", &["rc_verbs"]),
    ("rc_x", &["rc_mlx5"]),
    ("ud", &["ud_verbs", "ud_mlx5"]),
    ("cuda", &["cuda_copy", "cuda_ipc", "gdr_copy"]),
    ("rocm", &["rocm_copy", "rocm_ipc"]),
    ("gaudi", &["gaudi_copy", "gaudi_ipc", "gaudi_gdr"]),
    // What designs for Gaudi call the copies.
    ("gaudi_cpy", &["gaudi_copy"]),
    ("ze", &["ze_copy", "ze_ipc", "ze_gdr"]),
];

/// Transports that exist in UCX's world but not in this build: naming one is not a mistake.
const ABSENT: [&str; 23] = [
    "rc_mlx5",
    "ud_verbs",
    "ud_mlx5",
    "ud_v",
    "ud_x",
    "dc",
    "dc_x",
    "dc_mlx5",
    "srd",
    "gga",
    "gga_mlx5",
    "ugni",
    "ugni_smsg",
    "ugni_udt",
    "ugni_rdma",
    "cm",
    "knem",
    "xpmem",
    "ze_copy",
    "ze_ipc",
    "ze_gdr",
    "rocm_gdr",
    "mlx5",
];

/// The transports that may be used, in order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportSet {
    names: Vec<String>,
    absent: Vec<String>,
    named: bool,
}

impl Default for TransportSet {
    fn default() -> Self {
        Self::all(&[])
    }
}

impl TransportSet {
    /// All of this build and the program's own.
    pub(crate) fn all(own: &[&str]) -> Self {
        let names = available(own).map(str::to_owned).collect();
        Self {
            names,
            absent: Vec::new(),
            named: false,
        }
    }

    /// Parses names with commas between, or `^` and the names to leave out. `\` before a name means that very transport
    /// where the name is an alias too. `own` are the names of the program's own transports. What was left out of this build cannot be named.
    pub(crate) fn parse(text: &str, own: &[&str]) -> Result<Self, String> {
        let set = Self::parse_some(text, own)?;
        let missing = set
            .absent()
            .find_map(|name| Some((name, registry::missing_feature(name)?)));
        match missing {
            Some((name, feature)) => Err(format!(
                "{name} is not in this build of wharf: its feature `{feature}` brings it"
            )),
            None => Ok(set),
        }
    }

    /// As [`TransportSet::parse`], where what is not in this build may be named, beside what is.
    fn parse_some(text: &str, own: &[&str]) -> Result<Self, String> {
        let set = Self::parse_all(text, own)?;
        if set.names.is_empty() {
            let here = available(own).collect::<Vec<_>>().join(", ");
            return Err(match set.absent.as_slice() {
                [] => format!("leaves no transport out of {here}"),
                absent => {
                    let brings = |name: &String| match registry::missing_feature(name) {
                        Some(feature) => format!("{name} (by the feature `{feature}`)"),
                        None => name.clone(),
                    };
                    let absent: Vec<String> = absent.iter().map(brings).collect();
                    format!(
                        "{} not available in this build of wharf, which has {here}",
                        absent.join(", ")
                    )
                }
            });
        }
        Ok(set)
    }

    /// As a variable has it. UCX's may leave none: what then is left, the context decides.
    pub(super) fn read(word: &Word<'_>) -> Result<Self, String> {
        match word.is_ucx() {
            true => {
                let set = Self::parse_all(word.text, word.names.own)?;
                if word.text.contains(":aux") {
                    word.leave_out("no transport here needs another to connect");
                }
                Ok(set)
            }
            false => Self::parse_some(word.text, word.names.own),
        }
    }

    fn parse_all(text: &str, own: &[&str]) -> Result<Self, String> {
        let text = text.trim();
        let (negated, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let mut chosen: Vec<&str> = Vec::new();
        let mut all = false;
        for word in list.split(',').map(str::trim) {
            match word {
                "all" => all = true,
                _ if word.starts_with('^') => {
                    return Err("\"^\" stands once, before the whole list".to_owned());
                }
                _ => chosen.extend(expand(word, own)?),
            }
        }
        let wanted = |name: &str| (all || chosen.contains(&name)) != negated;
        let names: Vec<String> = available(own)
            .filter(|name| wanted(name))
            .map(str::to_owned)
            .collect();
        let absent: Vec<String> = absent(own)
            .filter(|name| !negated && chosen.contains(name))
            .map(str::to_owned)
            .collect();
        Ok(Self {
            names,
            absent,
            named: !negated && !all,
        })
    }

    /// Whether a transport may be used.
    pub(crate) fn allows(&self, name: &str) -> bool {
        self.names.iter().any(|allowed| allowed == name)
    }

    /// Those that may be used, the preferred first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Those that were asked for by name and that this build does not have.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &str> {
        self.absent.iter().map(String::as_str)
    }

    /// Whether each was asked for by name, so that its absence deserves a warning.
    pub(crate) fn is_named(&self) -> bool {
        self.named
    }
}

impl Text for TransportSet {
    fn text(&self) -> String {
        let names: Vec<&str> = self.names().chain(self.absent()).collect();
        names.join(",")
    }
}

/// What can be had: the program's own first (it added them to be used), then this build's.
fn available<'a>(own: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    own.iter().copied().chain(registry::NAMES.iter().copied())
}

/// What is known and cannot be had: in no build, or left out of this one and not the program's own.
fn absent<'a>(own: &[&str]) -> impl Iterator<Item = &'a str> {
    let left_out = registry::left_out().map(|(name, _)| name);
    ABSENT
        .into_iter()
        .chain(left_out.filter(|name| !own.contains(name)))
}

/// The transports that a word of the list stands for.
fn expand<'a>(word: &'a str, own: &[&str]) -> Result<Vec<&'a str>, String> {
    // Only for what helps another transport to connect, which none here needs.
    if let Some(name) = word.strip_suffix(":aux") {
        return expand(name, own).map(|_| Vec::new());
    }
    let exact = word.strip_prefix('\\');
    if exact.is_none()
        && let Some((_, names)) = ALIASES.iter().find(|(alias, _)| *alias == word)
    {
        return Ok(names.to_vec());
    }
    let name = exact.unwrap_or(word);
    if available(own).chain(absent(own)).any(|known| known == name) {
        return Ok(vec![name]);
    }
    let mut known: Vec<&str> = available(own)
        .chain(["all"])
        .chain(ALIASES.iter().map(|(alias, _)| *alias))
        .chain(absent(own))
        .collect();
    let mut seen = std::collections::HashSet::new();
    known.retain(|name| seen.insert(*name));
    Err(format!(
        "no transport \"{name}\"; known are {}{}",
        known.join(", "),
        did_you_mean(name, known.iter().copied())
    ))
}

#[cfg(all(
    feature = "cuda",
    feature = "gaudi",
    feature = "rocm",
    feature = "verbs"
))]
#[cfg(test)]
mod tests {
    use super::{super::environment::Names, *};

    fn names(text: &str) -> Vec<String> {
        TransportSet::parse(text, &[])
            .unwrap()
            .names()
            .map(str::to_owned)
            .collect()
    }

    fn refused(text: &str) -> String {
        TransportSet::parse(text, &[]).unwrap_err()
    }

    #[test]
    fn names_and_aliases() {
        assert_eq!(names("tcp"), ["tcp"]);
        assert_eq!(names("tcp, shm"), ["shm", "cma", "tcp"]);
        assert_eq!(names("sm"), ["shm", "cma"]);
        for shm in ["mm", "posix", "sysv", "\\shm"] {
            assert_eq!(names(shm), ["shm"]);
        }
        assert_eq!(names("cma,self"), ["self", "cma"]);
        assert_eq!(
            names("tcp,cuda"),
            ["tcp", "cuda_copy", "cuda_ipc", "gdr_copy"]
        );
        assert_eq!(names("gaudi_cpy"), ["gaudi_copy"]);
        let gaudi = names("gaudi");
        assert!(gaudi.contains(&"gaudi_copy".to_owned()));
        assert!(
            gaudi.iter().all(|name| name.starts_with("gaudi_")),
            "{gaudi:?}"
        );
        assert_eq!(names("gaudi_cpy,gaudi_gdr"), ["gaudi_copy", "gaudi_gdr"]);
        assert_eq!(names("rocm"), ["rocm_copy", "rocm_ipc"]);
        assert_eq!(names("all"), *registry::NAMES);
    }

    #[test]
    fn negation() {
        assert_eq!(names("^tcp,cma,ib,cuda,rocm,gaudi"), ["self", "shm"]);
        assert_eq!(
            names("^mm,cuda_ipc,rocm,gaudi"),
            ["self", "cma", "rc_verbs", "tcp", "cuda_copy", "gdr_copy"]
        );
        assert_eq!(names("^cuda,ib,rocm,gaudi"), ["self", "shm", "cma", "tcp"]);
        for rc in ["rc", "rc_v", "rc_verbs", "ib"] {
            assert_eq!(names(rc), ["rc_verbs"]);
        }
        assert!(refused("^self,shm,ib,tcp,cuda,rocm,gaudi").contains("leaves no transport"));
        assert!(refused("^all").contains("leaves no transport"));
        assert!(refused("shm,^tcp").contains("once"));
    }

    #[test]
    fn known_but_absent() {
        let set = TransportSet::parse("ze,tcp", &[]).unwrap();
        assert_eq!(set.names().collect::<Vec<_>>(), ["tcp"]);
        assert_eq!(
            set.absent().collect::<Vec<_>>(),
            ["ze_copy", "ze_ipc", "ze_gdr"]
        );
        assert!(set.is_named() && !TransportSet::default().is_named());
        let known = "rc_x ud dc ze";
        for only in known.split(' ') {
            assert!(
                refused(only).contains("not available in this build"),
                "{only}"
            );
        }
    }

    /// Of UCX's variable nothing that is legal there is an error.
    #[test]
    fn what_ucx_takes() {
        let read = |name, text| {
            let names = Names::NONE;
            TransportSet::read(&Word { name, text, names })
        };
        let names = |text| -> Vec<String> {
            let set = read("UCX_TLS", text).expect(text);
            set.names().map(str::to_owned).collect()
        };
        for nothing in [
            "rocm_gdr",
            "ze_gdr,ugni_smsg",
            "dc_x",
            "ud:aux",
            "xpmem,knem",
            "^all",
        ] {
            assert_eq!(names(nothing), [""; 0], "{nothing}");
            assert!(read("WHARF_TLS", nothing).is_err(), "{nothing}");
        }
        assert_eq!(names("rc_x,ud:aux,tcp"), ["tcp"]);
        assert_eq!(names("tcp,shm:aux"), ["tcp"]);
        assert_eq!(names("gaudi_gdr"), ["gaudi_gdr"]);
        assert!(read("UCX_TLS", "smm").is_err() && read("UCX_TLS", "smm:aux").is_err());
    }

    #[test]
    fn aliases_lead_to_transports() {
        for (alias, names) in ALIASES {
            assert!(
                names.iter().all(|name| registry::NAMES.contains(name)
                    || absent(&[]).any(|absent| absent == *name)),
                "{alias}"
            );
        }
    }

    #[test]
    fn unknown_names_the_nearest() {
        let text = refused("tpc");
        assert!(
            text.contains("self, shm, cma, rc_verbs, tcp")
                && text.contains("did you mean \"tcp\"?"),
            "{text}"
        );
        assert!(refused("gaudi_coppy").contains("did you mean \"gaudi_copy\"?"));
        assert!(refused("cudaa").contains("did you mean \"cuda\"?"));
        assert!(refused("tcp,,shm").contains("no transport \"\""));
        assert!(refused("SHM").contains("known are"));
    }

    #[test]
    fn own_transports_come_first() {
        let set = TransportSet::parse("tcp,pigeon", &["pigeon"]).unwrap();
        assert_eq!(set.names().collect::<Vec<_>>(), ["pigeon", "tcp"]);
        assert_eq!(
            TransportSet::all(&["pigeon"]).names().next(),
            Some("pigeon")
        );
    }
}
