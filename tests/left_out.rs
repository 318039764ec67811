//! What was left out of a build, as programs and variables that name it find it: `cargo test --no-default-features --test left_out`. A build that has it all
//! has nothing to test here.
#![cfg(not(any(
    feature = "channel",
    feature = "cuda",
    feature = "gaudi",
    feature = "rocm",
    feature = "verbs"
)))]

mod support;

use futures::FutureExt;
use wharf::{
    Context, ErrorKind, MemoryType, TransportState,
    config::{Source, Variable},
};

use support::{Child, Logs, child, on_a_runtime as run, this_test};

/// By name of the transport, its feature.
const LEFT_OUT: [(&str, &str); 4] = [
    ("cuda_copy", "cuda"),
    ("gaudi_copy", "gaudi"),
    ("rocm_copy", "rocm"),
    ("rc_verbs", "verbs"),
];

#[test]
fn a_program_that_names_it_hears_of_its_feature() {
    for (name, feature) in LEFT_OUT {
        for list in [name.to_owned(), format!("tcp,{name}")] {
            let error = Context::builder().transports(&list).expect_err("left out");
            assert_eq!(error.kind(), ErrorKind::Configuration);
            let text = error.to_string();
            assert!(
                text.contains(name) && text.contains(&format!("feature `{feature}`")),
                "{text}"
            );
        }
    }
    // What is not wanted need not be there.
    for list in ["all", "^cuda,rocm,gaudi,ib", "^rc_verbs"] {
        let context = Context::builder().transports(list).expect(list).build();
        let context = context.expect("a context");
        let usable: Vec<&str> = context.transports().collect();
        assert!(
            usable.contains(&"shm") && usable.contains(&"tcp"),
            "{usable:?}"
        );
    }
}

/// The context that variables ask for, in a process of its own; its transports, or why there is none, and the warnings.
fn asked(test: &str, variables: &[(&str, &str)]) -> (String, Vec<String>) {
    let mut child = Child::start(test, "asked", variables);
    let mut lines = Vec::new();
    run(async {
        let count = child.hear().await.parse().expect("a count");
        while lines.len() < count {
            lines.push(child.hear().await);
        }
    });
    child.finish();
    let transports = lines.remove(0);
    (transports, lines)
}

#[test]
fn a_variable_that_names_it_warns_once() {
    if let Some(parent) = child("asked") {
        let logs = Logs::of_process();
        let mut lines = vec![match Context::builder().build() {
            Ok(context) => context.transports().collect::<Vec<_>>().join(","),
            Err(error) => format!("{:?} {error}", error.kind()),
        }];
        // Of each once in a process, whoever builds a context.
        drop(Context::builder().build());
        lines.extend(logs.warnings());
        parent.say(lines.len().to_string());
        for line in lines {
            parent.say(line);
        }
        return;
    }
    let test = this_test!();
    for (name, feature) in LEFT_OUT {
        let list = format!("tcp,{name}");
        for variable in ["WHARF_TLS", "UCX_TLS"] {
            let (transports, warnings) = asked(test, &[(variable, &list)]);
            assert_eq!(transports, "tcp");
            let of_it = |line: &String| line.contains(name) && line.contains(feature);
            assert!(
                warnings.len() == 1 && warnings.iter().all(of_it),
                "{warnings:?}"
            );
        }
    }
    // One warning for all that a feature would bring.
    let (transports, warnings) = asked(test, &[("WHARF_TLS", "tcp,cuda")]);
    assert_eq!(
        (transports.as_str(), warnings.len()),
        ("tcp", 1),
        "{warnings:?}"
    );
    // As where a driver is missing: wharf's own variable leaves nothing, UCX's a worker that reaches itself.
    let (error, _) = asked(test, &[("WHARF_TLS", "cuda")]);
    assert!(
        error.starts_with("Configuration") && error.contains("feature `cuda`"),
        "{error}"
    );
    assert_eq!(asked(test, &[("UCX_TLS", "cuda")]).0, "self");
    // Options of it do nothing.
    for (name, feature) in [
        ("WHARF_RC_TIMEOUT", "verbs"),
        ("WHARF_LIBCUDA", "cuda"),
        ("WHARF_GAUDI_OWN", "gaudi"),
        ("WHARF_LIBHSA", "rocm"),
        ("WHARF_RANK", "channel"),
    ] {
        let (_, warnings) = asked(test, &[(name, "what nobody reads")]);
        let of_it = |line: &String| line.contains(name) && line.contains(feature);
        assert!(
            warnings.len() == 1 && warnings.iter().all(of_it),
            "{warnings:?}"
        );
        let variable = Variable::find(name).expect("in every build");
        assert_eq!(variable.feature(), Some(feature));
    }
    assert!(asked(test, &[("UCX_RC_TIMEOUT", "1s")]).1.is_empty());
}

#[test]
fn a_report_tells_of_it() {
    let context = Context::builder().build().expect("a context");
    let report = context.report();
    for (name, feature) in LEFT_OUT {
        let mut all = report.transports.iter();
        let of_it = all.find(|transport| transport.name == name).expect(name);
        assert!(
            matches!(&of_it.state, TransportState::Unavailable(why) if why.contains("this build")),
            "{of_it:?}"
        );
        let remedy = of_it.remedy.expect("a remedy");
        assert!(remedy.contains(&format!("feature `{feature}`")), "{remedy}");
    }
    let mut entries = context.configuration().into_iter();
    let entry = entries.find(|entry| entry.variable.name == "WHARF_RC_TIMEOUT");
    let entry = entry.expect("every variable");
    assert_eq!((entry.value, entry.source), (None, Source::Default));
}

#[test]
fn its_memory_cannot_be_had() {
    let context = Context::builder().build().expect("a context");
    for (memory_type, feature) in [
        (MemoryType::Cuda(0), "cuda"),
        (MemoryType::Rocm(0), "rocm"),
        (MemoryType::Gaudi(0), "gaudi"),
    ] {
        // Outside of a runtime it is done at once.
        let allocated = context.allocate_on(memory_type, 4096).now_or_never();
        let error = allocated.expect("at once").expect_err("no such memory");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = format!("{error:?}");
        assert!(text.contains(&format!("feature `{feature}`")), "{text}");
    }
}
