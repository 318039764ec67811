//! Every call of the driver's that fails once, at its every turn: one clear error, nothing kept, and the next attempt goes well.

use crate::{
    agent::{self, Agent, BLOCK, exported, imported, who},
    support::{child, this_test},
    sys::identity::identity,
};

/// The calls that were made, and how often.
fn calls(counts: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    counts.lines().filter_map(line).collect()
}

/// Those that only open the ground for others, or end something: their failure is told in the log.
const QUIET: [&str; 9] = [
    "cuIpcCloseMemHandle",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuMemPoolDestroy",
    "cuMemFree_v2",
    "cuCtxPopCurrent_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuGetProcAddress_v2",
];

/// In a process of its own, whose calls are counted. It has lines of its own: the answers are of several lines.
#[test]
fn importing() {
    if let Some(mut parent) = child("importer") {
        let mut agent = Agent::new();
        let peer = agent::peer_of(&agent.runtime.block_on(parent.hear()));
        for kind in ["device", "virtual", "pool"] {
            let export = agent.runtime.block_on(parent.hear());
            let descriptor = exported(&export);
            let attempt = |agent: &mut Agent| {
                let answer = agent.import(descriptor, &peer);
                // What fails in closing is only told.
                crate::api::control("fault clear");
                agent.release(None);
                agent.close();
                answer
            };
            // What is made once is made.
            imported(&attempt(&mut agent));
            let live = agent::live();
            crate::api::control("forget");
            imported(&agent.import(descriptor, &peer));
            let counts = crate::api::control("counts");
            agent.release(None);
            agent.close();
            let mut failed = 0;
            for (name, count) in calls(&counts) {
                if QUIET.contains(&name.as_str()) {
                    continue;
                }
                for nth in 1..=count {
                    crate::api::control(&format!("fault {name}@{nth}=999"));
                    let answer = attempt(&mut agent);
                    // Access for further devices is an extra.
                    let extra = [
                        "cuMemSetAccess",
                        "cuMemPoolSetAccess",
                        "cuDeviceCanAccessPeer",
                    ]
                    .contains(&name.as_str());
                    if answer.starts_with("ok") {
                        assert!(
                            extra || name == "cuDeviceGet",
                            "{kind} {name}@{nth}: {answer}"
                        );
                    } else {
                        assert!(answer.contains("999"), "{kind} {name}@{nth}: {answer}");
                        failed += 1;
                    }
                    assert_eq!(agent::live(), live, "{kind} {name}@{nth}");
                    imported(&attempt(&mut agent));
                    assert_eq!(agent::live(), live, "{kind} {name}@{nth}");
                }
            }
            assert!(failed > 5, "{kind}: {failed}");
            parent.say("next");
        }
        return;
    }
    let near = Agent::new();
    let mut importer = crate::support::Child::start(this_test!(), "importer", &[]);
    importer.say(who(identity()));
    for kind in ["device", "virtual", "pool"] {
        importer.say(near.export(near.allocate(kind, BLOCK, 0), 4096));
        assert_eq!(near.runtime.block_on(importer.hear()), "next");
    }
    importer.finish();
}

/// The exporter's calls, those of its answer at the socket among them.
#[test]
fn exporting() {
    if let Some(mut parent) = child("exporter") {
        let agent = Agent::new();
        loop {
            let line = agent.runtime.block_on(parent.hear());
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["quit"] => return,
                // Each time anew, so that nothing is known.
                ["export", kind] => {
                    let at = agent.allocate(kind, BLOCK, 0);
                    crate::api::control("forget");
                    parent.say(agent.export(at, 4096));
                }
                ["calls"] => {
                    let calls = calls(&crate::api::control("counts"));
                    let words: Vec<String> = calls
                        .into_iter()
                        .map(|(name, count)| format!("{name}:{count}"))
                        .collect();
                    parent.say(words.join(" "));
                }
                ["fault", ..] => {
                    crate::api::control(&line);
                    parent.say("set");
                }
                // An allocation first, then the fault, then the export.
                ["try", kind, fault] => {
                    let at = agent.allocate(kind, BLOCK, 0);
                    crate::api::control(&format!("fault {fault}"));
                    let answer = agent.export(at, 4096);
                    crate::api::control("fault clear");
                    let again = agent.export(at, 4096);
                    parent.say(format_args!("{answer}|{again}"));
                }
                _ => panic!("{line:?}"),
            }
        }
    }
    let mut near = Agent::new();
    let mut far = crate::support::Child::start(this_test!(), "exporter", &[]);
    let mut peer = identity().clone();
    peer.pid = far.pid();
    let runtime = agent::runtime();
    let mut ask = |line: String| {
        far.say(line);
        runtime.block_on(far.hear())
    };
    for kind in ["device", "virtual", "pool"] {
        exported(&ask(format!("export {kind}")));
        let counted = ask("calls".to_owned());
        for word in counted.split(' ') {
            let (name, count) = word.split_once(':').expect("a count");
            if QUIET.contains(&name) {
                continue;
            }
            for nth in 1..=count.parse::<u64>().expect("a number") {
                ask_twice(&mut ask, kind, name, nth);
            }
        }
    }
    // At the socket: the error comes to the importer.
    for (kind, name) in [
        ("virtual", "cuPointerGetAttribute"),
        ("virtual", "cuMemRetainAllocationHandle"),
        ("virtual", "cuMemExportToShareableHandle"),
        ("pool", "cuPointerGetAttributes"),
        ("pool", "cuMemPoolExportToShareableHandle"),
    ] {
        let export = ask(format!("export {kind}"));
        ask(format!("fault {name}@1=999"));
        let answer = near.import(exported(&export), &peer);
        assert!(
            agent::is(&answer, crate::error::ErrorKind::Rejected) && answer.contains("999"),
            "{name}: {answer}"
        );
        ask("fault clear".to_owned());
        imported(&near.import(exported(&export), &peer));
        near.release(None);
    }
    far.say("quit");
    far.finish();
}

fn ask_twice(ask: &mut impl FnMut(String) -> String, kind: &str, name: &str, nth: u64) {
    let answers = ask(format!("try {kind} {name}@{nth}=999"));
    let (answer, again) = answers.split_once('|').expect("two answers");
    let said = answer.contains("999") || answer.starts_with("impossible");
    assert!(said, "{kind} {name}@{nth}: {answer}");
    exported(again);
}
