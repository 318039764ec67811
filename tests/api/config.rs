//! What a context is asked for.

use wharf::{Context, ErrorKind, Worker};

#[cfg(any(feature = "cuda", feature = "verbs"))]
use crate::support::emulated;
use crate::{
    fixture::run,
    support::{Child, Logs, child, this_test},
};

#[test]
fn unknown_transports_name_the_nearest() {
    let error = Context::builder()
        .transports("shm,tpc")
        .expect_err("no such transport");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("tcp"), "{error}");
    let error = Context::builder()
        .net_devices("nosuchdevice0")
        .expect_err("no such device");
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[test]
fn a_worker_needs_a_runtime() {
    let context = Context::builder().build().expect("a context");
    assert_eq!(
        Worker::new(&context).expect_err("no runtime").kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn an_empty_secret_is_none() {
    assert_eq!(
        Context::builder()
            .secret("")
            .build()
            .expect_err("empty")
            .kind(),
        ErrorKind::Configuration
    );
}

/// What the transports are of a context without options, in a process with these variables; or why there is none.
fn in_an_environment(test: &str, variables: &[(&str, &str)]) -> String {
    // Tests beside this one find emulated devices by it, from some moment on.
    let variables = [&[("WHARF_LIBIBVERBS", "")], variables].concat();
    let mut child = Child::start(test, "asked", &variables);
    let mut line = String::new();
    run(async { line = child.hear().await });
    child.finish();
    line
}

#[test]
fn variables() {
    if let Some(parent) = child("asked") {
        let logs = Logs::of_process();
        parent.say(match Context::builder().build() {
            Ok(context) => context.transports().collect::<Vec<_>>().join(","),
            Err(error) => format!("{:?} {error}", error.kind()),
        });
        if std::env::var_os("WHARF_TSL").is_some() {
            // Once in a process, whoever builds a context.
            let again = Context::builder().build().expect("a context");
            assert_eq!(again.unknown_variables()[0].name, "WHARF_TSL");
            logs.expect_one_warning(&["WHARF_TSL is not a variable", "did you mean WHARF_TLS?"]);
        } else if std::env::var_os("WHARF_LIBCUDA").is_none() {
            logs.expect_no_warning();
        }
        return;
    }
    let asked = |variables: &[(&str, &str)]| in_an_environment(this_test!(), variables);
    let all = asked(&[("WHARF_TLS", "^cuda")]);
    assert!(
        all.contains("shm") && all.contains("tcp") && all.contains("self"),
        "{all}"
    );
    assert_eq!(asked(&[("WHARF_TLS", "tcp")]), "tcp");
    assert_eq!(asked(&[("UCX_TLS", "tcp")]), "tcp");
    assert_eq!(asked(&[("UCX_TLS", "tcp"), ("WHARF_TLS", "self")]), "self");
    assert!(!asked(&[("WHARF_TLS", "^tcp")]).contains("tcp"));
    #[cfg(feature = "cuda")]
    parts_of_cuda(asked, &all);
    for (name, value, nearest) in [
        ("WHARF_TLS", "tpc", "tcp"),
        ("WHARF_PROGRESS", "adaptve", "adaptive"),
    ] {
        let answer = asked(&[(name, value)]);
        assert!(
            answer.starts_with("Configuration") && answer.contains(nearest),
            "{name}={value}: {answer}"
        );
    }
    // A misspelled variable does nothing, and is told of.
    assert_eq!(asked(&[("WHARF_TLS", "^cuda"), ("WHARF_TSL", "tcp")]), all);
}

/// By the driver that the variable names; all of CUDA, or parts of it, can be left out. `all` are the transports without it.
#[cfg(feature = "cuda")]
fn parts_of_cuda(asked: impl Fn(&[(&str, &str)]) -> String, all: &str) {
    let driver = emulated::cuda();
    let driver = ("WHARF_LIBCUDA", driver.to_str().expect("UTF-8"));
    assert_eq!(asked(&[driver]), format!("{all},cuda_copy"));
    assert_eq!(asked(&[driver, ("WHARF_TLS", "^cuda")]), all);
    for list in ["self,cuda", "self,cuda_copy"] {
        assert_eq!(asked(&[driver, ("UCX_TLS", list)]), "self,cuda_copy");
    }
    // Legal there, and no transport of messages: a worker reaches itself.
    assert_eq!(asked(&[driver, ("UCX_TLS", "gaudi_gdr")]), "self");
    let answer = asked(&[driver, ("WHARF_TLS", "cuda_ipc")]);
    assert!(answer.contains("parts of cuda_copy"), "{answer}");
    let missing = ("WHARF_LIBCUDA", "/nowhere/libcuda.so.1");
    assert_eq!(asked(&[missing]), all);
    let answer = asked(&[missing, ("WHARF_TLS", "cuda")]);
    assert!(
        answer.starts_with("Unsupported") && answer.contains("/nowhere/libcuda.so.1"),
        "{answer}"
    );
}

/// The libraries of RDMA devices that the program names come before those of the variables, and their devices are known by name.
#[cfg(feature = "verbs")]
#[test]
fn libraries_of_rdma_devices() {
    use wharf::config::Source;

    let nowhere = "/nowhere/librdmacm.so.1";
    if let Some(parent) = child("asked") {
        let build = || {
            let builder = Context::builder().verbs_library(emulated::verbs());
            let builder = builder.rdmacm_library(nowhere).net_devices("emu0")?;
            builder.transports("rc_verbs")?.build()
        };
        let context = build().expect("its devices are there");
        let entries = context.configuration();
        for name in ["WHARF_LIBIBVERBS", "WHARF_LIBRDMACM"] {
            let entry = entries.iter().find(|entry| entry.variable.name == name);
            assert_eq!(entry.expect("an entry").source, Source::Builder, "{name}");
        }
        let mut said = String::new();
        run(async {
            let worker = Worker::new(&context).expect("a worker");
            let error = worker.listen_rdma("127.0.0.1:0").await;
            said = error.map(drop).expect_err("no library").to_string();
        });
        return parent.say(said);
    }
    let variables = [
        ("WHARF_LIBIBVERBS", "/nowhere/libibverbs.so.1"),
        ("WHARF_LIBRDMACM", "/elsewhere/librdmacm.so.1"),
    ];
    let said = in_an_environment(this_test!(), &variables);
    assert!(said.contains(nowhere), "{said}");
}
