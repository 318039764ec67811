//! Every environment variable that this crate reads: one table, which the documentation, the check for misspellings and `wharf info -c` are
//! made from.

use crate::util::features::is_built_in;

/// A variable of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// UCX's variable that is read where this one is not set.
    pub ucx: Option<&'static str>,
    /// What it takes: a type, with its unit where it has one.
    pub value: &'static str,
    /// What holds without it.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

impl Variable {
    /// The variable of this name, wharf's own or UCX's.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        let mut all = VARIABLES.iter();
        all.find(|variable| variable.name == name || variable.ucx == Some(name))
    }

    /// The feature of this crate without which it does nothing. `None`: it needs none.
    #[must_use]
    pub fn feature(&self) -> Option<&'static str> {
        FEATURES
            .iter()
            .find(|(beginning, _)| self.name.starts_with(beginning))
            .map(|(_, feature)| *feature)
    }

    /// The feature that this build lacks for it to do anything.
    pub(crate) fn missing_feature(&self) -> Option<&'static str> {
        self.feature().filter(|feature| !is_built_in(feature))
    }
}

/// How the names of those begin that a feature reads, and which.
const FEATURES: [(&str, &str); 20] = [
    ("WHARF_IB_", "verbs"),
    ("WHARF_RC_", "verbs"),
    ("WHARF_LIBIBVERBS", "verbs"),
    ("WHARF_LIBRDMACM", "verbs"),
    ("WHARF_LIBCUDA", "cuda"),
    ("WHARF_LIBGDRAPI", "cuda"),
    ("WHARF_LIBHSA", "rocm"),
    ("WHARF_LIBHIP", "rocm"),
    ("WHARF_LIBHLTHUNK", "gaudi"),
    ("WHARF_LIBSYNAPSE", "gaudi"),
    ("WHARF_LIBSCAL", "gaudi"),
    ("WHARF_GAUDI_", "gaudi"),
    ("GAUDI_MAPPING_TABLE", "gaudi"),
    ("HABANA_VISIBLE_MODULES", "gaudi"),
    ("WHARF_RANK", "channel"),
    ("WHARF_SIZE", "channel"),
    ("WHARF_ROOT", "channel"),
    ("WHARF_PORT", "channel"),
    ("WHARF_SECRET", "channel"),
    ("WHARF_SERVICE", "channel"),
];

/// Makes the table, and its documentation from it.
macro_rules! variables {
    ($($name:literal $(or $ucx:literal)?: $value:literal, else $default:literal, $doc:literal;)+) => {
        /// All of them. A size is a number of bytes, also with `K`, `M`, `G` or `T` (powers of 1024). A time is a number with `ns`, `us`, `ms`, `s` or
        /// `m`, without a unit seconds. `y` and `n` may be `yes` and `no`, `on` and `off`, `1` and `0`. An empty variable counts as not set.
        ///
        /// | variable | beneath it | takes | default | what it does |
        /// |---|---|---|---|---|
        $(#[doc = concat!("| `", $name, "` | ", $("`", $ucx, "`",)? " | ", $value, " | ", $default, " | ", $doc, " |")])+
        pub const VARIABLES: &[Variable] = &[$(
            Variable {
                name: $name,
                ucx: [$(Some($ucx),)? None][0],
                value: $value,
                default: $default,
                doc: $doc,
            },
        )+];
    };
}

variables! {
    "WHARF_TLS" or "UCX_TLS": "transports by UCX's names with commas between, or `^` and those to leave out", else "`all`",
        "which transports may be used; as `ContextBuilder::transports`";
    "WHARF_NET_DEVICES" or "UCX_NET_DEVICES": "interfaces and RDMA devices (`rxe0`, one port `rxe0:1`) with commas between, or `^` and those to leave out", else "`all`",
        "which network devices may be used; as `ContextBuilder::net_devices`";
    "WHARF_PROGRESS": "`adaptive`, `spin:TIME`, `busy`, `event` or `thread`", else "`adaptive`",
        "how a worker waits; as `ContextBuilder::progress`";
    "WHARF_RNDV_THRESH" or "UCX_RNDV_THRESH": "`auto`, `inf`, or a size; `intra:SIZE,inter:SIZE` for peers on this host and on others", else "`auto`",
        "from which size on a tag message goes by rendezvous; as `ContextBuilder::rendezvous_threshold`";
    "WHARF_RNDV_SCHEME" or "UCX_RNDV_SCHEME": "`get_zcopy` (the receiver reads), `put_zcopy` (the sender writes), `am` (in messages) or `auto`", else "`auto`: `get_zcopy` between devices, what was measured on one host",
        "how a long message travels where network devices reach memory, as its receiver has it; where the sender writes, the receiver clears its buffer before, as it cannot tell what was written; on one host the first two are one copy by the receiver; as `ContextBuilder::rendezvous_scheme`";
    "WHARF_CONNECT_TIMEOUT": "a time", else "`10s`",
        "for the whole of a connect; as `ContextBuilder::connect_timeout`";
    "WHARF_HANDSHAKE_TIMEOUT": "a time", else "`5s`",
        "what a listener gives a new connection to say who it is; as `ContextBuilder::handshake_timeout`";
    "WHARF_KEEPALIVE_INTERVAL" or "UCX_KEEPALIVE_INTERVAL": "a time in whole seconds, or `inf` for none", else "`10s`",
        "time between probes over TCP; a silent peer is given up after three; as `ContextBuilder::keepalive`";
    "WHARF_TCP_CHECKSUMS": "`y` or `n`", else "`n`",
        "frames over TCP carry checksums, where either end says so; as `ContextBuilder::tcp_checksums`";
    "WHARF_PIDFD": "`y` or `n`", else "`y`",
        "learn of a peer's death by a pidfd; as `ContextBuilder::pidfd`";
    "WHARF_CMA": "`y` or `n`", else "`y`",
        "copy between processes by `process_vm_readv`; as `ContextBuilder::cma`";
    "WHARF_STAGING": "`y` or `n`", else "`y`",
        "device memory may stop in host memory where no path reaches both ends; `n` as `ContextBuilder::forbid_staging`";
    "WHARF_OPS_WINDOW": "a count, at least 1", else "`4096`",
        "operations that may be posted on one endpoint; as `ContextBuilder::ops_window`";
    "WHARF_LIMITS": "`SCOPE.AMOUNT=COUNT` with commas between, as in `source.connections=64`; scopes `connection`, `source`, `worker`; `inf` for none", else "those of `config::Quota`",
        "what peers may make a worker hold; as `ContextBuilder::limits`";
    "WHARF_MEM_MONITOR" or "UCX_MEM_EVENTS": "`auto`, `imported`, `uffd`, `hooks`, `alloc` or `none`; UCX's: `y` for `auto`, `n` for `none`", else "`auto`",
        "who tells when memory goes away; as `ContextBuilder::memory_monitor`";
    "WHARF_RCACHE_ENABLE" or "UCX_RCACHE_ENABLE": "`y`, `n` or `try`", else "`y`",
        "keep registrations; as `ContextBuilder::keep_registrations`";
    "WHARF_RCACHE_MAX_REGIONS" or "UCX_RCACHE_MAX_REGIONS": "a count, at least 1, or `inf` for as many as there can be", else "`4096`",
        "registrations that are kept; as `ContextBuilder::max_registrations`";
    "WHARF_RCACHE_MAX_SIZE" or "UCX_RCACHE_MAX_SIZE": "a size, or `inf`", else "a quarter of the memory, or 0.8 of `RLIMIT_MEMLOCK` when that is less",
        "bytes in registrations that are kept; as `ContextBuilder::max_registered`";
    "WHARF_RCACHE_MAX_UNRELEASED" or "UCX_RCACHE_MAX_UNRELEASED": "a size, or `inf`", else "`128M`",
        "bytes that may wait to be deregistered; as `ContextBuilder::max_unreleased`";
    "WHARF_IB_PCI_RELAXED_ORDERING" or "UCX_IB_PCI_RELAXED_ORDERING": "`auto`, `y` or `n`", else "`auto`",
        "writes of network devices may overtake each other: `auto` where completions tell of the bytes, `y` in exposed memory too; as `ContextBuilder::relaxed_ordering`";
    "WHARF_IB_ON_DEMAND": "`y` or `n`", else "`n`",
        "network devices fetch pages when they want them, where they can, instead of having them pinned; as `ContextBuilder::on_demand_paging`";
    "WHARF_IB_GID_INDEX" or "UCX_IB_GID_INDEX": "a number, or `auto`", else "`auto`: RoCE v2 with an IPv4 address, if there is one",
        "where the address to use stands in the table of a port of an RDMA device; as `ContextBuilder::gid_index`";
    "WHARF_RC_TIMEOUT" or "UCX_RC_TIMEOUT": "a time, rounded up to 4.096 µs times a power of two", else "`268ms`",
        "how long a packet of `rc_verbs` may go unanswered, before it is sent again; as `ContextBuilder::rc_timeout`";
    "WHARF_RC_RETRY_COUNT" or "UCX_RC_RETRY_COUNT": "a count, at most 7", else "`7`",
        "how often it is sent again, before the peer is given up; as `ContextBuilder::rc_retries`";
    "WHARF_RC_PATH_MTU" or "UCX_RC_PATH_MTU": "bytes, a power of two from 256 to 4096, or `default`", else "`default`: as large as both ports take",
        "largest packets of `rc_verbs`; as `ContextBuilder::rc_path_mtu`";
    "WHARF_RC_TX_QUEUE_LEN" or "UCX_RC_TX_QUEUE_LEN": "a count, 32 to 1024", else "`128`",
        "messages of a connection of `rc_verbs` that may be on their way to the device; as `ContextBuilder::rc_send_queue`";
    "WHARF_LIBCUDA": "a path", else "`libcuda.so.1`",
        "the CUDA driver's library; as `CudaCopy::with_library`";
    "WHARF_LIBGDRAPI": "a path", else "`libgdrapi.so.2`",
        "GDRCopy's library; as `CudaCopy::gdr_library`";
    "WHARF_LIBHSA": "a path", else "`libhsa-runtime64.so.1`",
        "the HSA runtime's library, for AMD's devices; as `RocmCopy::with_library`";
    "WHARF_LIBHIP": "a path", else "`libamdhip64.so.7`, `.6`, `.5`",
        "HIP's library, where the program has loaded it; as `RocmCopy::hip`";
    "WHARF_LIBHLTHUNK": "a path", else "`libhl-thunk.so`",
        "the library of Intel's Gaudi cards; as `GaudiCopy::with_library`";
    "WHARF_LIBSYNAPSE": "a path", else "`libSynapse.so`",
        "Synapse's library, for Intel Gaudi; as `GaudiCopy::synapse`";
    "WHARF_LIBSCAL": "a path", else "`libscal.so`",
        "SCAL's library, for Intel Gaudi; as `GaudiCopy::scal`";
    "WHARF_LIBIBVERBS": "a path", else "`libibverbs.so.1`",
        "the library of InfiniBand and RoCE; as `ContextBuilder::verbs_library`";
    "WHARF_LIBRDMACM": "a path", else "`librdmacm.so.1`",
        "the library of their connections by IP address; as `ContextBuilder::rdmacm_library`";
    "WHARF_GAUDI_OWN": "`auto`, `none`, `all`, or PCI places, `module:N` and numbers with commas between, after `synapse:` those that Synapse is to acquire", else "`auto`: by the first allocation",
        "Gaudi cards that the process opens; as `GaudiCopy::own_cards`";
    "GAUDI_MAPPING_TABLE": "JSON: `[{\"index\":0,\"module_id\":3,\"bus_id\":\"0000:33:00.0\"}]`", else "the order of their nodes",
        "the numbers of Gaudi cards; as `GaudiCopy::numbered`";
    "HABANA_VISIBLE_MODULES": "numbers with commas between", else "all",
        "modules of the Gaudi cards that are used; as `GaudiCopy::modules`";
    "WHARF_RANK": "a number, from 0", else "by the launcher",
        "this process's number in its group; this and those below are read by `channel`, beside what launchers set; as `TcpBootstrap::join`";
    "WHARF_SIZE": "a count", else "by the launcher",
        "processes in the group; as `TcpBootstrap::join`";
    "WHARF_ROOT": "`host:port`, or the digits of a unique id", else "by the launcher",
        "where rank 0 is; as `TcpBootstrap::join`";
    "WHARF_PORT": "a port", else "by the launcher",
        "where rank 0 listens; an address as `tcp://10.0.0.7:7000`, which Kubernetes sets for a service called `wharf`, is left alone; as `TcpBootstrap::join`";
    "WHARF_SECRET": "text", else "none",
        "what the processes of a group must prove to know; as `BootstrapOptions::secret`";
    "WHARF_SERVICE": "a name", else "none",
        "Kubernetes: the headless service of the job's pods, where rank 0 is; as `TcpBootstrap::join`";
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::{super::unknown::is_of_kubernetes, *};

    /// Every name with wharf's prefix in a text; what goes on with `*` or `…` stands for several, and is left out.
    fn names(text: &str) -> impl Iterator<Item = &str> {
        text.match_indices("WHARF_").filter_map(move |(start, _)| {
            let before = text[..start].chars().next_back();
            let rest = &text[start..];
            let end = rest
                .find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
                .unwrap_or(rest.len());
            let whole = !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
                && !rest[..end].ends_with('_');
            whole.then_some(&rest[..end])
        })
    }

    /// Files with this ending under a folder.
    fn texts(folder: &Path, ending: &str, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                texts(&path, ending, found);
            } else if path.extension().is_some_and(|is| is == ending) {
                let text = fs::read_to_string(&path).expect("text");
                found.push((path.display().to_string(), text));
            }
        }
    }

    #[test]
    fn each_is_there_once() {
        let names: BTreeSet<_> = VARIABLES.iter().map(|variable| variable.name).collect();
        let beneath: BTreeSet<_> = VARIABLES
            .iter()
            .filter_map(|variable| variable.ucx)
            .collect();
        assert_eq!(names.len(), VARIABLES.len());
        assert!(names.is_disjoint(&beneath));
        assert!(beneath.iter().all(|name| name.starts_with("UCX_")));
        for variable in VARIABLES {
            for text in [variable.value, variable.default, variable.doc] {
                assert!(!text.is_empty() && !text.contains(['|', '\n']), "{text}");
            }
            assert_eq!(Variable::find(variable.name), Some(variable));
        }
        assert_eq!(Variable::find("UCX_TLS"), Variable::find("WHARF_TLS"));
        assert_eq!(Variable::find("TLS"), None);
        let feature = |name| Variable::find(name).expect(name).feature();
        assert_eq!(feature("UCX_RC_TIMEOUT"), Some("verbs"));
        assert_eq!(feature("WHARF_RCACHE_ENABLE"), None);
        for (beginning, feature) in FEATURES {
            let is_used = VARIABLES
                .iter()
                .any(|variable| variable.name.starts_with(beginning));
            assert!(is_used, "no variable begins with {beginning}");
            let mut all = crate::util::features::FEATURES.iter();
            assert!(
                all.any(|(known, _)| *known == feature),
                "no feature {feature}"
            );
        }
    }

    /// What a variable sets a program sets as well: each row ends with the method, which is there.
    #[test]
    fn each_has_a_method() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = Vec::new();
        texts(&root.join("src"), "rs", &mut sources);
        for Variable { name, doc, .. } in VARIABLES {
            let method = doc.rsplit_once(" as `").and_then(|(_, last)| {
                let (owner, method) = last.strip_suffix('`')?.split_once("::")?;
                Some((owner, method))
            });
            let (owner, method) = method.unwrap_or_else(|| panic!("{name} has no method: {doc}"));
            let block = format!("\nimpl {owner} {{\n");
            let is_there = sources.iter().any(|(_, text)| {
                let mut blocks = text.split(block.as_str()).skip(1);
                blocks.any(|rest| {
                    let own = rest.split_once("\n}\n").map_or(rest, |(own, _)| own);
                    ["pub fn", "pub async fn"]
                        .iter()
                        .any(|begins| own.contains(&format!("\n    {begins} {method}(")))
                })
            });
            assert!(is_there, "{name}: there is no {owner}::{method}");
        }
    }

    /// What the sources and the documents name is in the table, and what is in the table the sources name.
    #[test]
    fn the_table_holds_what_is_read() {
        /// Made up by tests.
        const NONE: [&str; 4] = [
            "WHARF_PORT_X",
            "WHARF_PROGRES",
            "WHARF_TEST_SHM_CHILD",
            "WHARF_ZZZZZZZZZZZZZZZZZZZZZZZZZZZZ",
        ];
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = Vec::new();
        texts(&root.join("src"), "rs", &mut sources);
        sources.retain(|(path, _)| !path.ends_with("config/variables.rs"));
        assert!(sources.len() > 100, "the sources were not found");
        let mut documents = Vec::new();
        for folder in ["examples", "docs"] {
            for ending in ["rs", "md"] {
                texts(&root.join(folder), ending, &mut documents);
            }
        }
        for file in ["README.md", "SUPPORT.md", "CHANGELOG.md"] {
            let text = fs::read_to_string(root.join(file)).expect(file);
            documents.push((file.to_owned(), text));
        }
        for (path, text) in sources.iter().chain(&documents) {
            let ours = |name: &&str| !NONE.contains(name) && !is_of_kubernetes(name, "tcp://");
            for name in names(text).filter(ours) {
                assert!(
                    VARIABLES.iter().any(|variable| variable.name == name),
                    "{path} names {name}, which is not in the table"
                );
            }
        }
        for variable in VARIABLES {
            for name in [Some(variable.name), variable.ucx].into_iter().flatten() {
                let quoted = format!("\"{name}\"");
                assert!(
                    sources.iter().any(|(_, text)| text.contains(&quoted)),
                    "nothing reads {name}"
                );
            }
        }
    }
}
