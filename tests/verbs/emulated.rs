//! Faults and events on the emulated library. Each test in a process of its own: the plan is for the whole process.
//!
//! # Safety
//! The control function is called with the signature that the emulator declares; memory stays until a test's end; a forked child calls
//! little and ends.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};

use crate::{
    driver::verbs::{
        Completion, EventKind, GidKind, SendFlags, SendRequest, Status, Subject, Verbs,
    },
    error::{Error, ErrorKind},
    events::next,
    link::{ALL, CAPACITY, End, Link, PATIENT, run},
    support::{Child, child, emulated, this_test},
};

/// Tells the emulator something, and has its answer.
pub(crate) fn control(text: &str) -> String {
    type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
    // SAFETY: the function has this signature.
    unsafe {
        let library = libloading::Library::new(emulated::verbs()).expect("the emulator");
        let call = library
            .get::<Control>("wharf_emulated_verbs_control")
            .expect("exported");
        let text = CString::new(text).expect("no zero");
        let mut answer = vec![0_u8; 64 << 10];
        let code = call(text.as_ptr(), answer.as_mut_ptr().cast(), answer.len());
        let answer = CStr::from_bytes_until_nul(&answer).expect("ends with a zero");
        assert!(code >= 0, "{text:?}: {answer:?}");
        answer.to_string_lossy().trim().to_owned()
    }
}

/// Runs the rest of the test in a process of its own, on the emulator wherever it is.
macro_rules! alone {
    () => {
        if child("alone").is_none() {
            let process = Child::start_by(&["env", "-u", "RDMA_VM"], this_test!(), "alone", &[]);
            process.finish();
            return;
        }
    };
}
pub(crate) use alone;

/// That nothing is left, and nothing was done that must not be.
#[track_caller]
fn all_gone() {
    assert_eq!(control("live"), "0");
    assert_eq!(control("misuses"), "");
}

/// Makes one of everything.
fn everything() -> Result<(), Error> {
    let verbs = Verbs::load(Some(&emulated::verbs()))?;
    let context = verbs.devices()?[0].open()?;
    context.attributes()?;
    context.port(1)?;
    context.gids()?;
    let domain = context.protection_domain()?;
    let channel = context.completion_channel()?;
    let queue = context.completion_queue(8, Some(&channel), 77, 0)?;
    let shared = domain.shared_receive_queue(4, 1, 1)?;
    let words = [0_u64; 8];
    // SAFETY: dropped before the words, and named by no request.
    let region = unsafe { domain.register(words.as_ptr().expose_provenance(), 64, ALL) }?;
    let options = crate::driver::verbs::QueuePairOptions {
        sends: &queue,
        receives: &queue,
        shared_receives: Some(&shared),
        capacity: CAPACITY,
        signal_all: false,
    };
    let queue_pair = domain.queue_pair(&options)?;
    queue_pair.to_init(&crate::driver::verbs::InitAttributes {
        port: 1,
        partition_index: 0,
        access: ALL,
    })?;
    queue.arm(false)?;
    queue.poll(&mut [Completion::default()])?;
    channel.drain(|_| ())?;
    context.next_event()?;
    drop(region);
    Ok(())
}

#[test]
fn every_call_may_fail_and_leaves_nothing() {
    alone!();
    every_call("ibv_query_gid_table");
}

/// A library without the newer tables is asked by the older calls.
#[test]
fn every_call_of_an_old_library_may_fail_and_leaves_nothing() {
    alone!();
    // It stays loaded from here on.
    everything().expect("goes well");
    control("old 1");
    every_call("ibv_query_gid");
}

fn every_call(gids: &str) {
    everything().expect("goes well");
    all_gone();
    let calls = [
        gids,
        "ibv_get_device_list",
        "ibv_open_device",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_srq",
        "ibv_reg_mr_iova2",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_req_notify_cq",
        "ibv_poll_cq",
        "ibv_get_cq_event",
        "ibv_get_async_event",
    ];
    for call in calls {
        for (errno, kind) in [
            (libc::ENOMEM, ErrorKind::Exhausted),
            (libc::EIO, ErrorKind::DeviceLost),
            (libc::EPERM, ErrorKind::PermissionDenied),
        ] {
            control("clear");
            control(&format!("fault {call}@1={errno}"));
            if call == "ibv_query_device" {
                // What the newer call does not tell, the older one is asked.
                control(&format!("fault ibv_query_device_ex@1={errno}"));
            }
            let error = everything().expect_err(call);
            let text = error.to_string();
            let name = call.trim_end_matches("_iova2");
            assert!(text.contains(name), "{call}: {text}");
            // A queue says nothing of why, nor does a port of its GIDs.
            if !matches!(call, "ibv_poll_cq" | "ibv_query_gid") {
                assert_eq!(error.kind(), kind, "{call}: {text}");
            }
            all_gone();
        }
    }
    // What cannot be ended is told in the log, and no more.
    control("clear");
    control("fault ibv_dereg_mr@1=16");
    everything().expect("goes well");
}

#[test]
fn a_failing_device_ends_a_request() {
    alone!();
    run(async {
        let link = Link::new(PATIENT);
        let (near, far) = (link.ends[0].memory(1), link.ends[1].memory(1));
        let piece = [near.piece(0..1)];
        let (address, key) = (far.address(0), far.region.rkey());
        let write = |id| SendRequest::write(id, &piece, SendFlags::SIGNALED, address, key);
        link.post(0, write(1));
        link.ends[0].success().await;
        control("fault completion@1=19");
        link.post(0, write(2));
        let ends = link.ends[0].completions(1).await;
        assert_eq!((ends[0].id(), ends[0].status()), (2, Status::FATAL_ERR));
        let error = ends[0].error().expect("an error");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    });
    all_gone();
}

#[test]
fn a_status_that_is_not_known_is_an_error_too() {
    alone!();
    run(async {
        let link = Link::new(PATIENT);
        let memory = link.ends[0].memory(1);
        control("fault completion@1=99");
        let piece = [memory.piece(0..1)];
        link.post(0, SendRequest::send(1, &piece, SendFlags::SIGNALED));
        let ends = link.ends[0].completions(1).await;
        let error = ends[0].error().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(
            error.to_string().contains("completion status 99"),
            "{error}"
        );
    });
}

#[test]
fn a_post_that_is_refused_says_how_many_went() {
    alone!();
    run(async {
        let link = Link::new(PATIENT);
        let (near, far) = (link.ends[0].memory(1), link.ends[1].memory(1));
        let piece = [near.piece(0..1)];
        let (address, key) = (far.address(0), far.region.rkey());
        let write = |id| SendRequest::write(id, &piece, SendFlags::SIGNALED, address, key);
        control("fault ibv_post_send@3=12");
        let mut three = [write(1), write(2), write(3)];
        // SAFETY: see above.
        let refused = unsafe { link.queue_pairs[0].post_send(&mut three) };
        let refused = refused.expect_err("is refused");
        assert!(refused.is_full() && refused.posted == 2, "{refused:?}");
        assert_eq!(link.ends[0].completions(2).await.len(), 2);
        control("fault ibv_post_recv@1=22");
        let mut receive = [crate::driver::verbs::ReceiveRequest::new(1, &piece)];
        // SAFETY: see above.
        let refused = unsafe { link.queue_pairs[0].post_receive(&mut receive) };
        let refused = refused.expect_err("is refused");
        assert!(!refused.is_full() && refused.posted == 0, "{refused:?}");
        let error = refused.error("ibv_post_recv", "emu0");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
    all_gone();
}

#[test]
fn a_queue_that_overflows_is_told_and_fails() {
    alone!();
    run(async {
        let ends = crate::link::devices().map(End::open);
        let small = ends[0].context.completion_queue(2, None, 5, 0);
        let small = small.expect("a queue");
        let options = crate::driver::verbs::QueuePairOptions {
            sends: &small,
            receives: &ends[0].queue,
            shared_receives: None,
            capacity: CAPACITY,
            signal_all: true,
        };
        let near = ends[0].domain.queue_pair(&options).expect("a queue pair");
        near.to_init(&crate::driver::verbs::InitAttributes {
            port: 1,
            partition_index: 0,
            access: ALL,
        })
        .expect("INIT");
        let far = ends[1].queue_pair(None);
        ends[0].connect(&near, ends[1].place(&far), PATIENT);
        ends[1].connect(&far, ends[0].place(&near), PATIENT);
        let (from, to) = (ends[0].memory(1), ends[1].memory(1));
        let piece = [from.piece(0..1)];
        let write = SendRequest::write(
            1,
            &piece,
            SendFlags::empty(),
            to.address(0),
            to.region.rkey(),
        );
        // SAFETY: see above.
        unsafe { near.post_send(&mut [write; 3]) }.expect("posted");
        let event = next(&ends[0].context).await;
        assert_eq!(event.kind, EventKind::CQ_ERR);
        assert_eq!(event.subject, Subject::CompletionQueue(5));
        let mut some = [Completion::default(); 4];
        assert_eq!(small.poll(&mut some).expect("what was there"), 2);
        let error = small.poll(&mut some).expect_err("has failed");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    });
    all_gone();
}

#[test]
fn events_name_what_they_are_about() {
    alone!();
    run(async {
        let link = Link::new(PATIENT);
        let context = &link.ends[0].context;
        for (kind, element, subject) in [
            (EventKind::PORT_ERR, 1, Subject::Port(1)),
            (EventKind::PORT_ACTIVE, 1, Subject::Port(1)),
            (EventKind::GID_CHANGE, 1, Subject::Port(1)),
            (EventKind::DEVICE_FATAL, 0, Subject::Device),
            // One that comes with a newer library.
            (EventKind(77), 0, Subject::Device),
        ] {
            assert_eq!(control(&format!("event 0 {} {element}", kind.0)), "1");
            let event = next(context).await;
            assert_eq!((event.kind, event.subject), (kind, subject));
            assert_eq!(event.kind.is_device_end(), kind == EventKind::DEVICE_FATAL);
        }
        // A peer who is refused is an event at this side.
        let (near, far) = (link.ends[0].memory(1), link.ends[1].memory(1));
        let piece = [far.piece(0..1)];
        let write = SendRequest::write(1, &piece, SendFlags::SIGNALED, near.address(0), 1);
        link.post(1, write);
        let event = next(context).await;
        assert_eq!(event.kind, EventKind::QP_ACCESS_ERR);
        assert_eq!(
            event.subject,
            Subject::QueuePair(link.queue_pairs[0].number())
        );
    });
    all_gone();
}

#[test]
fn misuse_of_objects_is_refused_before_the_library_sees_it() {
    alone!();
    {
        let ends = crate::link::devices().map(End::open);
        let refused = ends[0]
            .context
            .completion_queue(1, Some(&ends[1].channel), 0, 0);
        assert_eq!(
            refused.expect_err("another's").kind(),
            ErrorKind::InvalidArgument
        );
        let options = crate::driver::verbs::QueuePairOptions {
            sends: &ends[0].queue,
            receives: &ends[1].queue,
            shared_receives: None,
            capacity: CAPACITY,
            signal_all: false,
        };
        let refused = ends[0].domain.queue_pair(&options);
        assert_eq!(
            refused.expect_err("another's").kind(),
            ErrorKind::InvalidArgument
        );
        let quiet = ends[0]
            .context
            .completion_queue(1, None, 0, 0)
            .expect("a queue");
        assert_eq!(
            quiet.arm(false).expect_err("no channel").kind(),
            ErrorKind::InvalidArgument
        );
        let gid = ends[0].gid;
        assert_eq!((gid.index, gid.kind), (0, GidKind::ROCE_V2));
        // Without the call for tables, the kernel's files tell the kind; there are none.
        control("old 1");
        let gid = End::open("emu0").gid;
        assert_eq!((gid.index, gid.kind), (0, GidKind::IB));
    }
    all_gone();
}

/// A child made by `fork` calls nothing, and destroys nothing of its parent's.
#[test]
fn a_forked_child_is_kept_off() {
    alone!();
    let end = End::open("emu0");
    let memory = end.memory(1);
    let destroyed = control("count ibv_dereg_mr");
    // SAFETY: the child asks, drops, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let told = end.context.attributes().err().map(|error| error.kind());
            drop((end, memory));
            let fine = told == Some(ErrorKind::Forked)
                && control("count ibv_dereg_mr") == destroyed
                && control("count ibv_close_device") == "0";
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        child => {
            let mut status = 0;
            // SAFETY: our child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    drop((memory, end));
    all_gone();
}
