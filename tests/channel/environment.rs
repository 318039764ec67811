//! What launchers leave in the environment, from a map: the process's own is not touched.

use std::time::Duration;

use futures::future::try_join_all;
use wharf::{
    ErrorKind,
    channel::bootstrap::{BootstrapOptions, Launch, Launcher, RootPlace, Variables},
};

use crate::{
    bootstrap::runtime,
    support::{LIMIT, own_place, watchdog},
};

/// From lines like `NAME=value`.
fn variables(text: &str) -> Variables {
    text.split_whitespace()
        .map(|word| word.split_once('=').expect("NAME=value"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn launch(text: &str) -> Launch {
    Launch::from_variables(&variables(text))
        .expect("no contradiction")
        .expect("a launcher")
}

fn address(launch: &Launch) -> &str {
    match launch.place() {
        RootPlace::Address(address) => address,
        other => panic!("an address, not {other:?}"),
    }
}

#[test]
fn nothing_there() {
    let none = Launch::from_variables(&variables("HOME=/root PATH=/bin HOSTNAME=x"));
    assert!(none.expect("nothing wrong").is_none());
    // An allocation that has not started anything.
    let none = Launch::from_variables(&variables(
        "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NODELIST=n[1-2]",
    ));
    assert!(none.expect("nothing wrong").is_none());
}

#[test]
fn torchrun() {
    let found = launch(
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29501",
    );
    assert_eq!(found.launcher(), Launcher::Torchrun);
    assert_eq!((found.rank(), found.size()), (5, 8));
    assert_eq!((found.local_rank(), found.local_size()), (Some(1), Some(4)));
    assert_eq!(address(&found), "node7:29501");
    let found = launch("RANK=1 WORLD_SIZE=2 MASTER_ADDR=fe80::7 MASTER_PORT=1");
    assert_eq!(address(&found), "[fe80::7]:1");
}

#[test]
fn open_mpi() {
    let found = launch(
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4
         PMIX_RANK=3 PMIX_NAMESPACE=prterun-host-1234@1",
    );
    assert_eq!(found.launcher(), Launcher::OpenMpi);
    assert_eq!((found.rank(), found.size()), (3, 4));
    assert_eq!((found.local_rank(), found.local_size()), (Some(3), Some(4)));
    assert!(matches!(found.place(), RootPlace::Name(name) if name.starts_with("ompi-")));
    let found = launch(
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4
         MASTER_ADDR=a MASTER_PORT=5",
    );
    assert_eq!(address(&found), "a:5");
}

#[test]
fn pmi() {
    let found = launch(
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_ADDR=a MASTER_PORT=5",
    );
    assert_eq!(found.launcher(), Launcher::Pmi);
    assert_eq!((found.rank(), found.size()), (1, 2));
    assert_eq!((found.local_rank(), found.local_size()), (Some(1), Some(2)));
}

#[test]
fn slurm() {
    let found = launch(
        "SLURM_PROCID=6 SLURM_NTASKS=64 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=2 SLURM_NODELIST=x[1-9]
         SLURM_STEP_NODELIST=gpu[007-010,020],other SLURM_JOB_ID=123456 SLURM_STEP_ID=2",
    );
    assert_eq!(found.launcher(), Launcher::Slurm);
    assert_eq!((found.rank(), found.size()), (6, 8));
    assert_eq!(found.local_rank(), Some(2));
    let port = 15_000 + (123_456 * 31 + 2) % 16_384;
    assert_eq!(address(&found), format!("gpu007:{port}"));
    for (list, host) in [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1,3]", "n1"),
        ("n[3-5].cluster,m", "n3.cluster"),
        ("r[1-2]n[03-04]", "r1n03"),
    ] {
        let text = format!("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST={list} WHARF_PORT=77");
        assert_eq!(address(&launch(&text)), format!("{host}:77"), "{list}");
    }
}

#[test]
fn kubernetes() {
    let found = launch(
        "JOB_COMPLETION_INDEX=12 WHARF_SIZE=16 HOSTNAME=train-12 WHARF_SERVICE=ranks.default.svc",
    );
    assert_eq!(found.launcher(), Launcher::Kubernetes);
    assert_eq!((found.rank(), found.size()), (12, 16));
    assert_eq!(address(&found), "train-0.ranks.default.svc:29500");
    let found = launch("JOB_COMPLETION_INDEX=0 WORLD_SIZE=2 HOSTNAME=a-b-0 WHARF_SERVICE=s");
    assert_eq!(address(&found), "a-b-0.s:29500");
}

#[test]
fn the_innermost_counts() {
    // torchrun, one agent on each of two nodes, started by srun.
    let found = launch(
        "RANK=5 WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=1 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODELIST=n[1-2]",
    );
    assert_eq!((found.launcher(), found.rank()), (Launcher::Torchrun, 5));
    // One by hand, in all of that.
    let found = launch("WHARF_RANK=1 WHARF_SIZE=3 WHARF_ROOT=here:9 RANK=5 WORLD_SIZE=8");
    assert_eq!((found.launcher(), found.rank()), (Launcher::Wharf, 1));
    assert_eq!(address(&found), "here:9");
    // One process needs nobody.
    let found = launch("RANK=0 WORLD_SIZE=1");
    assert_eq!(found.place(), &RootPlace::Nowhere);
}

#[test]
fn wrong_ones_are_named() {
    for (text, names) in [
        ("RANK=0", &["RANK", "WORLD_SIZE"][..]),
        ("WORLD_SIZE=2", &["RANK", "WORLD_SIZE"]),
        ("RANK=two WORLD_SIZE=4", &["RANK", "two"]),
        ("RANK=-1 WORLD_SIZE=4", &["RANK", "-1"]),
        ("RANK=4 WORLD_SIZE=4", &["RANK is 4", "WORLD_SIZE is 4"]),
        ("RANK=0 WORLD_SIZE=0", &["WORLD_SIZE is 0"]),
        ("RANK=0 WORLD_SIZE=99999999", &["WORLD_SIZE is 99999999"]),
        ("RANK=0 WORLD_SIZE=2", &["MASTER_ADDR", "MASTER_PORT"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", &["MASTER_PORT is not"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=1", &["MASTER_ADDR is not"]),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=99999",
            &["MASTER_PORT", "99999"],
        ),
        (
            "RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
            &["LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"],
        ),
        (
            "RANK=0 WORLD_SIZE=4 LOCAL_RANK=4 MASTER_ADDR=a MASTER_PORT=1",
            &["LOCAL_RANK is 4", "WORLD_SIZE is 4"],
        ),
        (
            "RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4",
            &["RANK is 1", "OMPI_COMM_WORLD_RANK is 2"],
        ),
        (
            "OMPI_COMM_WORLD_RANK=2",
            &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=1",
            &["OMPI_COMM_WORLD_RANK is 0", "PMIX_RANK is 1"],
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=x",
            &["MASTER_ADDR", "WHARF_ROOT"],
        ),
        ("PMI_SIZE=3", &["PMI_SIZE", "PMI_RANK"]),
        ("PMI_RANK=0 PMI_SIZE=3", &["MASTER_ADDR"]),
        ("SLURM_PROCID=1", &["SLURM_PROCID", "SLURM_NTASKS"]),
        ("SLURM_PROCID=0 SLURM_NTASKS=2", &["SLURM_NODELIST"]),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=n1",
            &["SLURM_JOB_ID", "WHARF_PORT"],
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=n[ SLURM_JOB_ID=1",
            &["SLURM_NODELIST", "n["],
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=a/b SLURM_JOB_ID=1",
            &["SLURM_NODELIST"],
        ),
        (
            "JOB_COMPLETION_INDEX=1",
            &["JOB_COMPLETION_INDEX", "WHARF_SIZE"],
        ),
        (
            "JOB_COMPLETION_INDEX=1 WHARF_SIZE=2",
            &["HOSTNAME", "WHARF_SERVICE"],
        ),
        (
            "JOB_COMPLETION_INDEX=1 WHARF_SIZE=2 HOSTNAME=job-2 WHARF_SERVICE=s",
            &["HOSTNAME", "JOB_COMPLETION_INDEX"],
        ),
        ("WHARF_RANK=1", &["WHARF_RANK", "WHARF_SIZE"]),
        ("WHARF_RANK=1 WHARF_SIZE=2", &["WHARF_ROOT"]),
        (
            "WHARF_RANK=1 WHARF_SIZE=2 WHARF_ROOT=nonsense",
            &["WHARF_ROOT"],
        ),
    ] {
        let error = Launch::from_variables(&variables(text)).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Configuration, "{text}: {error}");
        for name in names {
            assert!(error.to_string().contains(name), "{text}: {error}");
        }
    }
}

/// What was read leads to a group.
#[test]
fn groups_are_made() {
    runtime().block_on(watchdog(LIMIT, async {
        let options = BootstrapOptions::new().deadline(Duration::from_secs(20));
        let place = own_place();
        let (address, port) = (place.ip(), place.port());
        let text = |rank| {
            [
                format!("RANK={rank} WORLD_SIZE=3 MASTER_ADDR={address} MASTER_PORT={port} WHARF_SECRET=x"),
                format!(
                    "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE=test-{}",
                    std::process::id()
                ),
            ]
        };
        for kind in 0..2 {
            let launches: Vec<Launch> = (0..3).map(|rank| launch(&text(rank)[kind])).collect();
            assert!(!format!("{:?}", launches[0]).contains("\"x\""));
            let group = launches.iter().map(|launch| launch.join(&options));
            let group = try_join_all(group).await.expect("a group");
            let ranks = group.iter().map(|rank| rank.all_gather(vec![rank.rank() as u8].into()));
            for all in try_join_all(ranks).await.expect("gathered") {
                assert_eq!(all, [[0].as_slice(), &[1], &[2]]);
            }
        }
        let alone = launch("RANK=0 WORLD_SIZE=1").join(&options).await.expect("alone");
        alone.barrier().await.expect("nobody to wait for");
    }));
}
