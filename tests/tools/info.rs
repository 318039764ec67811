//! `wharf info`: what it says on this machine, on emulated devices, and where something is not as it should be.

use serde_json::Value;
use wharf::config::VARIABLES;

use crate::{
    run::{fails, succeeds, wharf},
    support::emulated,
};

/// Every name that configuration knows for this build's transports.
const TRANSPORTS: [&str; 13] = [
    "self",
    "shm",
    "cma",
    "rc_verbs",
    "tcp",
    "cuda_copy",
    "cuda_ipc",
    "gdr_copy",
    "gaudi_copy",
    "gaudi_ipc",
    "gaudi_gdr",
    "rocm_copy",
    "rocm_ipc",
];

#[track_caller]
fn json(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut all = vec!["info"];
    all.extend(arguments);
    all.push("--json");
    serde_json::from_str(&succeeds(&all, variables)).expect("JSON")
}

/// The entry of a list with this name.
#[track_caller]
fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut entries = list.as_array().expect("a list").iter();
    let found = entries.find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list:#}"))
}

fn strings(list: &Value) -> Vec<&str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

fn emulated(path: std::path::PathBuf) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn everything_in_one_report() {
    let report = json(&[], &[]);
    let keys: Vec<&str> = report
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "build",
            "caches",
            "configuration",
            "memory_domains",
            "memory_monitors",
            "system",
            "topology",
            "transports",
            "unknown_variables"
        ]
    );
    assert_eq!(report["build"]["version"], env!("CARGO_PKG_VERSION"));
    for feature in ["axum", "tonic", "tools"] {
        assert!(strings(&report["build"]["features"]).contains(&feature));
    }
    // The compiler that Cargo has for this test as well.
    let output = std::process::Command::new("rustc")
        .arg("--version")
        .output()
        .expect("a compiler");
    let compiler = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(report["build"]["compiler"], compiler.trim());
    let transports = report["transports"].as_array().expect("a list");
    let names: Vec<&str> = transports
        .iter()
        .filter_map(|transport| transport["name"].as_str())
        .collect();
    assert_eq!(names, TRANSPORTS);
    for transport in transports {
        match transport["state"].as_str() {
            Some("usable") => assert!(transport["reason"].is_null(), "{transport:#}"),
            Some("unavailable") => {
                let reason = transport["reason"].as_str().expect("a reason");
                assert!(!reason.is_empty());
            }
            _ => panic!("{transport:#}"),
        }
    }
    assert_eq!(named(&report["transports"], "tcp")["state"], "usable");
    assert_eq!(named(&report["transports"], "self")["reach"], "worker");
    assert_eq!(
        named(&report["memory_domains"], "host")["memory_types"][0],
        "host"
    );
    let chosen = report["memory_monitors"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|monitor| monitor["chosen"] == true);
    assert_eq!(chosen.count(), 1, "{:#}", report["memory_monitors"]);
    assert_eq!(report["caches"]["registrations"]["enabled"], true);
    let variables = report["configuration"].as_array().expect("a list");
    assert_eq!(variables.len(), VARIABLES.len());
    assert_eq!(report["unknown_variables"], Value::Array(Vec::new()));
}

/// The text says what the JSON says.
#[test]
fn text_has_the_same_content() {
    let text = succeeds(&["info"], &[]);
    for name in TRANSPORTS {
        assert!(
            text.lines()
                .any(|line| line.trim_start().starts_with(&format!("{name} "))),
            "{name} is missing:\n{text}"
        );
    }
    for head in [
        "wharf ",
        "Transports",
        "Memory domains",
        "Memory monitors",
        "Caches",
        "NUMA nodes",
        "Configuration",
    ] {
        assert!(text.lines().any(|line| line.starts_with(head)), "{head}");
    }
    let report = json(&["--devices"], &[]);
    for transport in report["transports"].as_array().expect("a list") {
        for key in ["reason", "remedy"] {
            if let Some(said) = transport[key].as_str() {
                assert!(text.contains(said), "{said} is missing:\n{text}");
            }
        }
    }
    // Sections by themselves.
    let memory = succeeds(&["info", "-m"], &[]);
    assert!(memory.starts_with("Memory domains") && !memory.contains("Transports"));
    let build = succeeds(&["info", "-b", "-t"], &[]);
    assert!(build.contains("NUMA nodes") && !build.contains("Configuration"));
}

#[test]
fn configuration_says_where_values_came_from() {
    let variables = [
        ("WHARF_TLS", "tcp,self"),
        ("UCX_RNDV_THRESH", "8K"),
        ("WHARF_SECRET", "Schwertfisch"),
    ];
    let report = json(&["-c"], &variables);
    let of = |name: &str| {
        let entry = named(&report["configuration"], name);
        (entry["value"].as_str(), entry["source"].as_str())
    };
    assert_eq!(of("WHARF_TLS"), (Some("self,tcp"), Some("WHARF_TLS")));
    assert_eq!(
        of("WHARF_RNDV_THRESH"),
        (Some("8192"), Some("UCX_RNDV_THRESH"))
    );
    assert_eq!(of("WHARF_OPS_WINDOW"), (Some("4096"), Some("default")));
    assert_eq!(of("WHARF_SECRET"), (Some("set"), Some("WHARF_SECRET")));
    assert_eq!(of("WHARF_SERVICE"), (None, Some("default")));
    let text = succeeds(&["info", "-c"], &variables);
    assert!(text.contains("WHARF_TLS=self,tcp (WHARF_TLS)"), "{text}");
    assert!(!text.contains("Schwert") && !report.to_string().contains("Schwert"));
    // Every variable with its documentation.
    for variable in VARIABLES {
        for said in [variable.name, variable.doc, variable.default] {
            assert!(text.contains(&said.replace('`', "")), "{said}\n{text}");
        }
    }
    // Without -c only what was set, and what that leaves out.
    let short = succeeds(&["info"], &variables);
    assert!(short.contains("WHARF_RNDV_THRESH=8192 (UCX_RNDV_THRESH)"));
    assert!(!short.contains("WHARF_OPS_WINDOW"));
    let shm = short.lines().find(|line| line.starts_with("  shm "));
    assert!(
        shm.is_some_and(|line| line.contains("left out by WHARF_TLS")),
        "{short}"
    );
}

#[test]
fn a_misspelled_variable_is_told_once() {
    let ran = wharf(&["info", "--json"], &[("WHARF_PROGRES", "busy")]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let said = ran
        .err
        .matches("WHARF_PROGRES is not a variable of wharf")
        .count();
    assert_eq!(said, 1, "{}", ran.err);
    assert!(
        ran.err.contains("did you mean WHARF_PROGRESS?"),
        "{}",
        ran.err
    );
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(
        named(&report["unknown_variables"], "WHARF_PROGRES")["nearest"],
        "WHARF_PROGRESS"
    );
    // However many contexts are built.
    let ran = wharf(
        &["info", "protocols", "--over", "tcp"],
        &[("WHARF_PROGRES", "busy")],
    );
    assert_eq!(ran.err.matches("WHARF_PROGRES ").count(), 1, "{}", ran.err);
    let text = succeeds(&["info", "-c"], &[("WHARF_PROGRES", "busy")]);
    assert!(text.contains("WHARF_PROGRES is not a variable"), "{text}");
}

#[test]
fn emulated_devices_are_found() {
    let (cuda, gdr) = (emulated(emulated::cuda()), emulated(emulated::gdr()));
    let hsa = emulated(emulated::hsa());
    let (gaudi, verbs) = (emulated(emulated::hlthunk()), emulated(emulated::verbs()));
    let variables = [
        ("WHARF_LIBCUDA", cuda.as_str()),
        ("WHARF_LIBGDRAPI", &gdr),
        ("WHARF_LIBHLTHUNK", &gaudi),
        ("WHARF_LIBHSA", &hsa),
        ("WHARF_LIBIBVERBS", &verbs),
        ("EMULATED_CUDA_DEVICES", "3"),
    ];
    let report = json(&[], &variables);
    let cuda = named(&report["transports"], "cuda_copy");
    assert_eq!(cuda["state"], "usable", "{cuda:#}");
    let devices = cuda["devices"].as_array().expect("a list");
    assert_eq!(devices.len(), 3, "{cuda:#}");
    for (number, device) in devices.iter().enumerate() {
        assert_eq!(device["memory_type"], format!("cuda:{number}"));
        assert!(device["pci"].as_str().is_some_and(|pci| pci.contains(':')));
    }
    for name in [
        "cuda_ipc",
        "gdr_copy",
        "gaudi_copy",
        "gaudi_ipc",
        "gaudi_gdr",
        "rocm_copy",
        "rocm_ipc",
        "rc_verbs",
    ] {
        let transport = named(&report["transports"], name);
        assert_eq!(transport["state"], "usable", "{transport:#}");
    }
    let rc = named(&report["transports"], "rc_verbs");
    assert!(
        rc["note"]
            .as_str()
            .is_some_and(|note| note.contains("connect_rdma")),
        "{rc:#}"
    );
    let ports = &rc["devices"];
    assert!(
        ports[0]["name"]
            .as_str()
            .is_some_and(|name| name.ends_with(":1")),
        "{ports:#}"
    );
    for (name, first) in [("rocm_copy", "rocm:0"), ("gaudi_copy", "gaudi:0")] {
        let devices = &named(&report["transports"], name)["devices"];
        assert_eq!(devices[0]["memory_type"], first, "{name}: {devices:#}");
    }
    for name in ["cuda", "rocm"] {
        let domains = report["memory_domains"].as_array().expect("a list");
        let domain = domains
            .iter()
            .find(|domain| domain["name"].as_str().is_some_and(|n| n.contains(name)));
        let domain = domain.unwrap_or_else(|| panic!("{name}: {domains:#?}"));
        assert_eq!(domain["in_use"], true, "{domain:#}");
        assert!(strings(&domain["capabilities"]).contains(&"detect"));
    }
    assert_eq!(report["caches"]["memory_types"]["in_use"], true);
}

/// What was tried, what the loader said, and what to do.
#[test]
fn an_absent_library_says_why() {
    let nowhere = "/no/such/folder/libnone.so";
    let report = json(
        &["-d"],
        &[
            ("WHARF_LIBCUDA", nowhere),
            ("WHARF_LIBHSA", nowhere),
            ("WHARF_LIBIBVERBS", nowhere),
            ("WHARF_LIBHLTHUNK", nowhere),
        ],
    );
    for (name, variable) in [
        ("cuda_copy", "WHARF_LIBCUDA"),
        ("rocm_copy", "WHARF_LIBHSA"),
        ("rc_verbs", "WHARF_LIBIBVERBS"),
        ("gaudi_copy", "WHARF_LIBHLTHUNK"),
    ] {
        let transport = named(&report["transports"], name);
        assert_eq!(transport["state"], "unavailable");
        let reason = transport["reason"].as_str().expect("a reason");
        assert!(
            reason.contains(nowhere) && reason.contains("cannot open shared object file"),
            "{name}: {reason}"
        );
        let remedy = transport["remedy"].as_str().expect("a remedy");
        assert!(remedy.contains(variable), "{name}: {remedy}");
    }
    let part = named(&report["transports"], "cuda_ipc");
    assert_eq!(part["reason"], "it needs cuda_copy");
    assert!(part["remedy"].is_null());
}

/// A driver that is there and has no device.
#[test]
fn a_driver_without_a_device_says_so() {
    let cuda = emulated(emulated::cuda());
    let variables = [
        ("WHARF_LIBCUDA", cuda.as_str()),
        ("EMULATED_CUDA_DEVICES", "0"),
    ];
    let report = json(&["-d"], &variables);
    let cuda = named(&report["transports"], "cuda_copy");
    assert_eq!(cuda["state"], "unavailable", "{cuda:#}");
    assert!(cuda["reason"].as_str().is_some_and(|why| !why.is_empty()));
}

/// Every operation's ranges begin at 0, follow each other, and go on for ever.
#[track_caller]
fn table(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let mut all = vec!["protocols"];
    all.extend(arguments);
    let table = json(&all, variables);
    for operation in table["operations"].as_array().expect("a list") {
        let ranges = operation["ranges"].as_array().expect("a list");
        let mut next = 0;
        for (index, range) in ranges.iter().enumerate() {
            assert_eq!(range["from"].as_u64(), Some(next), "{operation:#}");
            match range["to"].as_u64() {
                Some(to) => next = to + 1,
                None => assert_eq!(index + 1, ranges.len(), "{operation:#}"),
            }
            assert!(range["way"].as_str().is_some_and(|way| !way.is_empty()));
        }
        assert!(ranges.last().is_some_and(|last| last["to"].is_null()));
    }
    table
}

#[track_caller]
fn ways<'a>(table: &'a Value, operation: &str) -> Vec<&'a Value> {
    let mut operations = table["operations"].as_array().expect("a list").iter();
    let found = operations.find(|one| one["operation"] == operation);
    let found = found.unwrap_or_else(|| panic!("no {operation} in {table:#}"));
    found["ranges"].as_array().expect("a list").iter().collect()
}

#[test]
fn protocols_between_host_memories() {
    for over in ["self", "shm", "tcp"] {
        let table = table(&["--over", over], &[]);
        assert!(
            strings(&table["transports"]).contains(&over),
            "{over}: {table:#}"
        );
        assert_eq!(table["from"], "host");
        for operation in [
            "tag_send", "am_send", "put", "get", "stream", "atomic", "signal",
        ] {
            for way in ways(&table, operation) {
                assert_eq!(way["possible"], true, "{over} {operation}: {way:#}");
                assert_eq!(way["staged"], false);
            }
        }
    }
    // A threshold is found to the byte.
    let table = table(
        &["--over", "tcp", "--operation", "tag_send"],
        &[("WHARF_RNDV_THRESH", "10000")],
    );
    assert_eq!(table["operations"].as_array().map(Vec::len), Some(1));
    let rendezvous = ways(&table, "tag_send")
        .into_iter()
        .find(|way| way["way"].as_str().is_some_and(|way| way.contains("rend")));
    let rendezvous = rendezvous.unwrap_or_else(|| panic!("{table:#}"));
    assert_eq!(rendezvous["from"], 10_000, "{table:#}");
}

#[test]
fn protocols_between_emulated_devices() {
    let cuda = emulated(emulated::cuda());
    let variables = [("WHARF_LIBCUDA", cuda.as_str())];
    let staged = table(
        &["--from", "cuda", "--to", "host", "--over", "tcp"],
        &variables,
    );
    assert_eq!(
        (&staged["from"], &staged["to"]),
        (&"cuda:0".into(), &"host".into())
    );
    assert_eq!(staged["notes"], Value::Array(Vec::new()));
    for operation in ["tag_send", "put", "get"] {
        let ways = ways(&staged, operation);
        let last = ways.last().expect("a way");
        assert_eq!(last["staged"], true, "{operation}: {last:#}");
        assert!(
            last["way"]
                .as_str()
                .is_some_and(|way| way.contains("pinned fragments"))
        );
    }
    // The engine was opened, so the length of its fragments is known.
    assert!(ways(&staged, "put")[0]["fragment"].is_u64(), "{staged:#}");
    let atomic = ways(&staged, "atomic")[0];
    assert_eq!(atomic["possible"], false);
    let across = table(
        &["--from", "cuda:0", "--to", "cuda:1", "--over", "shm"],
        &variables,
    );
    let last = *ways(&across, "put").last().expect("a way");
    assert_eq!(last["possible"], true, "{last:#}");
    // In text as well.
    let text = succeeds(
        &[
            "info",
            "protocols",
            "--from",
            "cuda",
            "--to",
            "host",
            "--over",
            "tcp",
        ],
        &variables,
    );
    assert!(
        text.starts_with("From cuda:0 to host over tcp") && text.contains("staged through"),
        "{text}"
    );
}

#[test]
fn protocols_over_an_emulated_network_device() {
    let verbs = emulated(emulated::verbs());
    let table = table(
        &["--over", "rc_verbs"],
        &[("WHARF_LIBIBVERBS", verbs.as_str())],
    );
    assert_eq!(strings(&table["transports"]), ["rc_verbs"]);
}

/// No driver for the memory: the table says that it cannot be done, and why.
#[test]
fn protocols_without_the_device() {
    let nowhere = [("WHARF_LIBCUDA", "/no/such/folder/libcuda.so")];
    let table = table(&["--from", "cuda", "--over", "tcp"], &nowhere);
    assert!(
        table["notes"][0]
            .as_str()
            .is_some_and(|note| note.starts_with("cuda:0: ")),
        "{table:#}"
    );
    for way in ways(&table, "tag_send") {
        assert_eq!(way["possible"], false, "{way:#}");
    }
}

#[test]
fn bad_arguments_and_impossible_wishes() {
    for arguments in [
        &["inform"][..],
        &["info", "--frobnicate"],
        &["info", "protocols", "--from", "moon"],
        &["info", "protocols", "--from", "cuda:x"],
        &["info", "protocols", "--operation", "recv"],
        &["info", "--devices", "protocols"],
    ] {
        fails(2, arguments, &[]);
    }
    for (over, why) in [
        ("tpc", "did you mean \"tcp\"?"),
        ("cma", "carries no messages"),
        ("cuda_ipc", "cannot be used"),
        ("rc_mlx5", "not available in this build"),
        ("", "no transport"),
    ] {
        let said = fails(
            1,
            &["info", "protocols", "--over", over],
            &[("WHARF_LIBCUDA", "/no/such/folder/libcuda.so")],
        );
        assert!(
            said.starts_with("error: ") && said.contains(why) && said.lines().count() == 1,
            "{over}: {said}"
        );
    }
    let said = fails(1, &["info"], &[("WHARF_TLS", "tpc")]);
    assert!(
        said.contains("WHARF_TLS=tpc") && said.contains("did you mean \"tcp\"?"),
        "{said}"
    );
    let said = fails(1, &["info", "-c"], &[("WHARF_OPS_WINDOW", "0")]);
    assert!(said.contains("WHARF_OPS_WINDOW"), "{said}");
}

#[test]
fn every_feature_of_the_package_is_told() {
    let manifest = include_str!("../../Cargo.toml");
    let features = manifest.split("\n[features]\n").nth(1).expect("features");
    let features = features.split("\n[").next().expect("an end");
    let source = include_str!("../../src/bin/wharf/info/build.rs");
    let mut count = 0;
    for line in features.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(" = ").next().expect("a name").trim();
        if !name.is_empty() && name != "default" {
            assert!(
                source.contains(&format!("cfg!(feature = \"{name}\")")),
                "{name}"
            );
            count += 1;
        }
    }
    assert!(count > 10, "the manifest was not understood");
}
