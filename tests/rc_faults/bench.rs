//! Two workers in one process, on the emulated devices.
//!
//! # Safety
//! The control function is called with the signature that the emulator declares.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use wharf::{Context, Endpoint, Error, Tag, Worker};

use crate::support::{LIMIT, Looks, block_on, emulated, open_fds, pattern, until, watchdog};

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
        // Whoever loads it next is to find the plan.
        let _ = std::mem::ManuallyDrop::new(library);
        let answer = CStr::from_bytes_until_nul(&answer).expect("ends with a zero");
        assert!(code >= 0, "{text:?}: {answer:?}");
        answer.to_string_lossy().trim().to_owned()
    }
}

/// Runs the rest of the test in a process of its own, on the emulator wherever it is, or on the library at a path.
macro_rules! alone {
    () => {
        let library = crate::support::emulated::verbs();
        alone!(library.to_str().expect("a path"))
    };
    ($library:expr) => {
        if crate::support::child("alone").is_none() {
            let library: &str = $library;
            let process = crate::support::Child::start_by(
                &["env", "-u", "RDMA_VM"],
                crate::support::this_test!(),
                "alone",
                &[
                    ("WHARF_LIBIBVERBS", library),
                    ("WHARF_LIBRDMACM", library),
                    // For who chooses `cuda`.
                    (
                        "WHARF_LIBCUDA",
                        crate::support::emulated::cuda().to_str().expect("a path"),
                    ),
                ],
            );
            process.finish();
            return;
        }
    };
}

/// Runs a test's future, with a watchdog, and waits until all that it made is gone.
#[track_caller]
pub(crate) fn run(future: impl Future<Output = ()>) {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let _ = control("live");
    // What a process opens once, and keeps.
    runtime().block_on(async {
        let context = context("rc_verbs").expect("a context");
        let two = Two::over_tcp(context).await.expect("connects");
        two.talk(100_000).await.expect("talks");
        two.end().await;
        watchdog(LIMIT, gone()).await;
    });
    let before = open_fds();
    let runtime = runtime();
    block_on(&runtime, LIMIT, future);
    block_on(&runtime, LIMIT, gone());
    drop(runtime);
    // Engines end on threads of their own.
    let mut looks = Looks::new("the end of all descriptors").within(LIMIT / 6);
    while open_fds() != before {
        looks.block();
    }
}

/// Waits until nothing is left of what was made; nothing may have been done that must not be.
pub(crate) async fn gone() {
    while control("live") != "0" {
        let gone = until("the end of all", || control("live") == "0");
        // Shown where the test fails.
        if tokio::time::timeout(LIMIT / 6, gone).await.is_err() {
            eprintln!("left: {}", control("left"));
        }
    }
    assert_eq!(control("misuses"), "");
}

/// A context that tries for no longer than some seconds.
pub(crate) fn context(transports: &str) -> Result<Context, Error> {
    Context::builder()
        .transports(transports)?
        .connect_timeout(Duration::from_secs(4))
        .handshake_timeout(Duration::from_secs(3))
        .build()
}

/// The same for `rc_verbs` over the first device alone: nothing takes over what that does.
pub(crate) fn one_device() -> Result<Context, Error> {
    Context::builder()
        .transports("rc_verbs")?
        .net_devices("emu0")?
        .connect_timeout(Duration::from_secs(4))
        .handshake_timeout(Duration::from_secs(3))
        .build()
}

/// Both sides of a connection. A side that asks and fails ends the other's waiting.
pub(crate) async fn meet<T>(
    asks: impl Future<Output = Result<T, Error>>,
    answers: impl Future<Output = Result<T, Error>>,
) -> Result<(T, T), Error> {
    let (mut asks, mut answers) = (pin!(asks), pin!(answers));
    let mut answered = None;
    let asked = loop {
        tokio::select! {
            asked = &mut asks => break asked?,
            answer = &mut answers, if answered.is_none() => answered = Some(answer),
        }
    };
    let answered = match answered {
        Some(answer) => answer?,
        None => answers.await?,
    };
    Ok((asked, answered))
}

/// Two workers with an endpoint each to the other.
pub(crate) struct Two {
    pub(crate) here: Endpoint,
    pub(crate) there: Endpoint,
    pub(crate) workers: [Worker; 2],
    pub(crate) context: Context,
}

impl Two {
    /// Two workers of a context, connected over TCP.
    pub(crate) async fn over_tcp(context: Context) -> Result<Self, Error> {
        let workers = [Worker::new(&context)?, Worker::new(&context)?];
        let (here, there) = Self::connect(&workers).await?;
        Ok(Self {
            here,
            there,
            workers,
            context,
        })
    }

    /// The same workers, connected anew.
    pub(crate) async fn again(self) -> Result<Self, Error> {
        let Self {
            here,
            there,
            workers,
            context,
        } = self;
        drop((here, there));
        let (here, there) = Self::connect(&workers).await?;
        Ok(Self {
            here,
            there,
            workers,
            context,
        })
    }

    /// Connects them.
    pub(crate) async fn connect(workers: &[Worker; 2]) -> Result<(Endpoint, Endpoint), Error> {
        let listener = workers[1].listen("127.0.0.1:0").await?;
        let address = listener.local_addr();
        let answers = async { listener.accept().await?.accept().await };
        meet(workers[0].connect(address), answers).await
    }

    /// Sends until both ends have ended, and says why.
    pub(crate) async fn ended(&self) -> [Error; 2] {
        let traffic = async {
            while self.talk(1000).await.is_ok() {}
            std::future::pending::<()>().await;
        };
        let ends = async { tokio::join!(self.here.closed(), self.there.closed()) };
        tokio::select! {
            (here, there) = ends => [here, there],
            () = traffic => unreachable!("it never ends"),
        }
    }

    /// Ends all, and waits for it.
    pub(crate) async fn end(self) {
        let Self {
            here,
            there,
            workers,
            context,
        } = self;
        drop((here, there));
        for worker in &workers {
            let _ = worker.shutdown(Duration::from_secs(5)).await;
        }
        drop((workers, context));
    }

    /// Messages in both directions. Under tags of their own: what a connection that ended had delivered is not taken for what comes later.
    pub(crate) async fn talk(&self, length: usize) -> Result<(), Error> {
        for (from, to) in [(&self.here, 1), (&self.there, 0)] {
            let bytes = pattern(7, length);
            static NEXT: AtomicU64 = AtomicU64::new(1);
            let tag = Tag(NEXT.fetch_add(1, Relaxed));
            let send = from.tag_send(tag, bytes.clone());
            let receive = async {
                let worker = &self.workers[to];
                let received = worker.tag_recv(tag, vec![0; length]);
                let received = received.await.map_err(|error| error.into_parts().0)?;
                // Here, for the send may not end when another message was taken.
                assert!(received.buffer == bytes, "altered");
                Ok(())
            };
            tokio::try_join!(send, receive)?;
        }
        Ok(())
    }
}
