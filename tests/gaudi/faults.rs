//! An error from each call of every function, one at a time: at most one clear error, nothing is left, and the next goes well.

use wharf::{ErrorKind, MemoryType};

use crate::{
    fixture::run_on_threads,
    machine::{DEVICE, Machine, OTHER, bytes},
    support::{block_until, side_by_side},
};

const CALLS: [&str; 14] = [
    "hlthunk_open_control",
    "hlthunk_open",
    "hlthunk_get_hw_ip_info",
    "hlthunk_get_pci_bus_id_from_fd",
    "hlthunk_device_memory_alloc",
    "hlthunk_device_memory_map",
    "hlthunk_device_memory_free",
    "hlthunk_host_memory_map",
    "hlthunk_memory_unmap",
    "hlthunk_command_submission",
    "hlthunk_wait_for_cs",
    "hlthunk_wait_for_multi_cs",
    "hlthunk_notifier_create",
    "hlthunk_device_mapped_memory_export_dmabuf_fd",
];

/// One of everything: the errors.
async fn everything(machine: &Machine) -> Vec<wharf::Error> {
    let mut errors = Vec::new();
    let (context, worker) = machine.worker();
    for (from, to) in [
        (MemoryType::Host, DEVICE),
        (MemoryType::HostPinned, DEVICE),
        (DEVICE, DEVICE),
        (DEVICE, OTHER),
    ] {
        let source = match context.allocate_on(from, 10_000).await {
            Ok(source) => source.freeze(),
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let target = match context.allocate_on(to, 10_000).await {
            Ok(target) => target,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        match worker.copy(source.clone(), target).await {
            Err(error) => errors.push(error.into_parts().0),
            Ok(target) => {
                let target = target.freeze();
                if let Some(place) = target.device_range() {
                    errors.extend(context.export(place).err());
                }
                match worker.copy(target, vec![1; 10_000]).await {
                    Ok(found) => assert!(found.iter().all(|byte| *byte == 0)),
                    Err(error) => errors.push(error.into_parts().0),
                }
            }
        }
    }
    errors
}

/// The longest of its program in one thread: several, with machines of their own, share the calls.
#[test]
fn an_error_from_each_call() {
    const PARTS: usize = 4;
    let parts = (0..PARTS).map(|part| CALLS.into_iter().skip(part).step_by(PARTS));
    side_by_side(parts, |calls| run_on_threads(errors_from_each_of(calls)));
}

async fn errors_from_each_of(calls: impl Iterator<Item = &'static str>) {
    let machine = Machine::new(&[]);
    for name in calls {
        let clean = everything(&machine).await;
        assert!(clean.is_empty(), "before {name}: {clean:?}");
        gone(&machine).await;
        for nth in 1..=4 {
            for errno in [libc::EINVAL, libc::ENOMEM, libc::EIO] {
                let what = format!("{name}@{nth}={errno}");
                machine.control(&format!("fault {what}"));
                let errors = everything(&machine).await;
                machine.control("fault clear");
                for error in &errors {
                    let text = error.to_string();
                    assert!(!text.is_empty() && text.len() < 2000, "{what}: {text}");
                    assert_ne!(error.kind(), ErrorKind::Canceled, "{what}: {error:?}");
                    assert_ne!(
                        error.kind(),
                        ErrorKind::DeadlineExceeded,
                        "{what}: {error:?}"
                    );
                }
                gone(&machine).await;
            }
        }
    }
    let (context, worker) = machine.worker();
    let memory = context.allocate_on(DEVICE, 10).await.expect("memory");
    assert_eq!(bytes(&worker, memory.freeze()).await, [0; 10]);
}

async fn gone(machine: &Machine) {
    tokio::task::block_in_place(|| {
        block_until("all is given back", || {
            machine.live("sessions") == 0 && machine.live("exported") == 0
        });
    });
}

#[test]
fn calls_that_do_nothing_and_say_that_they_did() {
    run_on_threads(async {
        let machine = Machine::new(&[]);
        for name in ["hlthunk_command_submission", "hlthunk_host_memory_map"] {
            for nth in 1..4 {
                machine.control(&format!("fault {name}@{nth}=skip"));
                let _ = everything(&machine).await;
                machine.control("fault clear");
                gone(&machine).await;
            }
        }
    });
}

#[test]
fn a_card_that_dies_at_each_call() {
    run_on_threads(async {
        let machine = Machine::new(&[]);
        for name in [
            "hlthunk_command_submission",
            "hlthunk_host_memory_map",
            "hlthunk_wait_for_multi_cs",
        ] {
            for how in ["die:4", "late:4"] {
                for nth in 1..6 {
                    machine.control(&format!("fault {name}:0@{nth}={how}"));
                    for error in everything(&machine).await {
                        let fits = [
                            ErrorKind::DeviceLost,
                            ErrorKind::Exhausted,
                            ErrorKind::WouldBlock,
                            ErrorKind::Closed,
                        ];
                        assert!(
                            fits.contains(&error.kind()),
                            "{name} {how} {nth}: {error:?}"
                        );
                    }
                    machine.control("fault clear");
                    gone(&machine).await;
                }
            }
        }
    });
}
