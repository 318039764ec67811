//! What copies cost, as calls of the library.

use std::time::Duration;

use wharf::MemoryType;

use crate::{
    fixture::{run, run_on_threads},
    machine::{DEVICE, Machine, alone, filled},
    support::{all_are, at_rest, block_until},
};

const MAP: &str = "hlthunk_host_memory_map";
const SUBMIT: &str = "hlthunk_command_submission";

#[test]
fn a_copy_of_known_memory_is_one_submission() {
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        let mut memory = filled(&worker, &context, DEVICE, &[1; 50_000]).await;
        for kind in [MemoryType::HostPinned, MemoryType::Host] {
            let mut host = filled(&worker, &context, kind, &[2; 50_000]).await.freeze();
            memory = worker.copy(host.clone(), memory).await.expect("copied");
            // What was there before is given back in the background.
            let calls = || machine.number("calls");
            at_rest("the last call", Duration::from_millis(20), calls).await;
            machine.control("forget");
            for _ in 0..20 {
                memory = worker.copy(host.clone(), memory).await.expect("copied");
                let back = alone(host).await;
                let source = memory.freeze();
                host = worker
                    .copy(source.clone(), back)
                    .await
                    .expect("copied")
                    .freeze();
                memory = alone(source).await;
            }
            assert_eq!(machine.calls(SUBMIT), 40, "{kind}");
            let maps = machine.calls(MAP) + machine.calls("hlthunk_memory_unmap");
            assert_eq!(maps, 0, "{kind}");
        }
        machine.check();
    });
}

#[test]
fn a_gib_from_a_reused_buffer_is_mapped_once() {
    run_on_threads(async {
        const GIB: usize = 1 << 30;
        let machine = Machine::new(&[("memory", 4 << 30), ("delay_us", 0)]);
        let (context, worker) = machine.worker();
        let mut memory = context.allocate_on(DEVICE, GIB).await.expect("memory");
        let host = context.allocate_on(MemoryType::HostPinned, GIB).await;
        let host = host.expect("memory").freeze();
        machine.control("forget");
        for _ in 0..2 {
            memory = worker.copy(host.clone(), memory).await.expect("copied");
        }
        assert_eq!(machine.calls(MAP), 1);
        assert_eq!(machine.calls(SUBMIT), 32, "pieces of 64 MiB");
        machine.check();
        drop(memory);
    });
}

#[test]
fn no_call_at_idle() {
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        let memory = filled(&worker, &context, DEVICE, &[1; 1000]).await;
        let calls = || machine.number("calls");
        at_rest("the last call", Duration::from_millis(20), calls).await;
        machine.control("forget");
        // As long as nothing comes.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(machine.number("calls"), 0, "{}", machine.control("trace"));
        drop((memory, worker, context));
    });
}

#[test]
fn one_wait_at_a_time_and_never_more_than_the_ring_holds() {
    run_on_threads(async {
        let machine = Machine::new(&[("delay_us", 300)]);
        let (context, worker) = machine.worker();
        let mut copies = Vec::new();
        for index in 0..200 {
            let host = vec![index as u8; 100_000];
            let memory = context
                .allocate_on(DEVICE, host.len())
                .await
                .expect("memory");
            copies.push(worker.copy(host, memory).post());
        }
        for copy in copies {
            copy.await.expect("copied");
        }
        machine.check();
        assert!(machine.live("running") == 0);
    });
}

#[test]
fn memory_that_changes_under_its_registration_is_mapped_anew() {
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        const ROUNDS: usize = 50;
        let memory = filled(&worker, &context, DEVICE, &[9; 8192]).await.freeze();
        machine.control("forget");
        let mut places = std::collections::BTreeSet::new();
        for round in 0..ROUNDS {
            // Unmapped when it is dropped. The same address again, as a rule, and other pages.
            let room = context.allocate_on(MemoryType::Host, 1 << 20).await;
            let found = worker.copy(memory.clone(), room.expect("memory")).await;
            let found = found.expect("copied").freeze();
            let slice = found.as_slice().expect("the host's");
            places.insert(slice.as_ptr() as u64);
            assert!(all_are(&slice[..8192], 9), "round {round}");
            assert!(all_are(&slice[8192..], 0));
        }
        if context
            .memory_monitor()
            .expect("one")
            .classes()
            .covers_foreign_memory()
        {
            assert!(places.len() < ROUNDS, "no address came again");
        }
        assert!(machine.calls(MAP) >= ROUNDS as u64, "one for each");
        // The program's own, so long that the allocator gives it back to the system each time.
        machine.control("forget");
        for round in 0..10 {
            let room = vec![round; 33 << 20];
            let found = worker.copy(memory.clone(), room).await.expect("copied");
            assert!(all_are(&found[..8192], 9));
            assert!(all_are(&found[8192..], round));
        }
        assert!(machine.calls(MAP) >= 10, "one for each");
        block_until("old mappings go", || machine.live("mappings") < 20);
        machine.check();
    });
}
