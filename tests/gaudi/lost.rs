//! A card that is reset, or does not end its work: what was begun fails as lost, the card is closed, others go on.

use wharf::{BufferMut, Context, ErrorKind, Worker};

use crate::{
    fixture::{run, run_on_threads},
    machine::{DEVICE, DEVICE_RESET, Machine, OTHER, bytes, filled},
    support::{LIMIT, block_until, until},
};

async fn buffers(context: &Context, count: usize) -> Vec<BufferMut> {
    let mut buffers = Vec::new();
    for _ in 0..count {
        buffers.push(context.allocate_on(DEVICE, 1 << 20).await.expect("memory"));
    }
    buffers
}

/// What the kernel allows a submission when nothing is set.
const USUAL_MS: u64 = 30_000;

/// Loses a card with copies under way: by what `how` does to it, or by a submission that runs for longer than it may.
async fn lose(how: Option<&(dyn Fn(&Machine) + Sync)>) {
    let machine = Machine::new(&[]);
    let (context, worker) = machine.worker();
    let other = filled(&worker, &context, OTHER, &[4; 1000]).await.freeze();
    let buffers = buffers(&context, 60).await;
    machine.control("hold 0");
    if how.is_none() {
        // Only for what is held up: nothing else is short of time on a busy machine.
        machine.control("set timeout_ms 300");
    }
    let copies: Vec<_> = buffers
        .into_iter()
        .map(|buffer| worker.copy(vec![1; 1 << 20], buffer).post())
        .collect();
    if let Some(how) = how {
        until("all four", || machine.live("running") >= 4).await;
        how(&machine);
    }
    for copy in copies {
        let error = copy.await.expect_err("the card is gone");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
    }
    machine.control(&format!("set timeout_ms {USUAL_MS}"));
    block_until("the card is closed", || machine.live("sessions") == 1);
    // The other card goes on, and the worker.
    assert_eq!(bytes(&worker, other).await, [4; 1000]);
    machine.control("release");
    // Opened anew by an allocation; for a new worker.
    let fresh = Worker::new(&context).expect("a worker");
    let start = std::time::Instant::now();
    let again = loop {
        match context.allocate_on(DEVICE, 100).await {
            Ok(again) => break again,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
    };
    let again = fresh.copy(vec![8; 100], again).await.expect("copied");
    let again = again.freeze();
    assert_eq!(bytes(&fresh, again.clone()).await, [8; 100]);
    // The worker that lost it has it again too.
    assert_eq!(bytes(&worker, again.clone()).await, [8; 100]);
    let beside = context.allocate_on(OTHER, 100).await.expect("memory");
    let beside = worker.copy(again, beside).await.expect("copied");
    assert_eq!(bytes(&worker, beside.freeze()).await, [8; 100]);
    drop((worker, fresh, context));
    tokio::task::spawn_blocking(move || {
        block_until("all is given back", || machine.live("sessions") == 0);
    })
    .await
    .expect("gone");
}

#[test]
fn a_reset_in_the_middle() {
    run(lose(Some(&|machine| {
        machine.control(&format!("break 0 {DEVICE_RESET}"));
    })));
}

#[test]
fn a_reset_in_the_middle_on_threads() {
    run_on_threads(async {
        let reset = |machine: &Machine| {
            machine.control(&format!("break 0 {DEVICE_RESET}"));
        };
        lose(Some(&reset)).await;
    });
}

#[test]
fn an_abort() {
    run(lose(Some(&|machine| {
        machine.control("abort 0");
    })));
}

#[test]
fn a_submission_that_times_out() {
    run(lose(None));
}

#[test]
fn a_reset_at_idle_closes_the_card() {
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        let memory = filled(&worker, &context, DEVICE, &[4; 1000]).await.freeze();
        let exported = context.export(memory.device_range().expect("on a device"));
        drop(exported.expect("exported"));
        machine.control(&format!("break 0 {DEVICE_RESET}"));
        block_until("the card is closed", || machine.live("sessions") == 0);
        block_until("its dma-bufs are", || machine.live("exported") == 0);
        let error = worker.copy(memory.clone(), vec![0; 1000]).await;
        let error = error.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error:?}");
        // It was the only one that was in use: the engine was lost with it. Both come back with the next allocation, the memory of before does not.
        let start = std::time::Instant::now();
        let again = loop {
            match context.allocate_on(DEVICE, 1000).await {
                Ok(again) => break again,
                Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
            }
        };
        let again = worker.copy(vec![5; 1000], again).await.expect("copied");
        assert_eq!(bytes(&worker, again.freeze()).await, [5; 1000]);
        let error = worker
            .copy(memory, vec![0; 1000])
            .await
            .expect_err("of before");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        // And so it is in a context of its own.
        let (other, apart) = machine.worker();
        let memory = filled(&apart, &other, DEVICE, &[6; 10]).await;
        assert_eq!(bytes(&apart, memory.freeze()).await, [6; 10]);
    });
}
