//! No wait without an end.

use std::{
    fmt::Write as _,
    fs,
    future::{Future, poll_fn},
    panic::Location,
    pin::{Pin, pin},
    sync::mpsc,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use tokio::{runtime::Runtime, sync::oneshot};

/// What a step of a test may take on a slow and busy machine before it counts as hanging.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test on a runtime of one thread, within [`LIMIT`].
#[track_caller]
pub(crate) fn on_a_runtime<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    block_on(&runtime.expect("a runtime"), LIMIT, test)
}

/// Runs a test as a task of a runtime of two threads, within [`LIMIT`].
#[track_caller]
pub(crate) fn on_threads(test: impl Future<Output = ()> + Send + 'static) {
    let test: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(test);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let task = runtime.spawn(watchdog(LIMIT, test));
    if let Err(error) = runtime.block_on(task) {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Runs a test on a runtime of one thread, and again as a task of one with two.
#[track_caller]
pub(crate) fn on_each_runtime<F: Future<Output = ()> + Send + 'static>(test: impl Fn() -> F) {
    on_a_runtime(test());
    on_threads(test());
}

/// Blocks on `future` under [`watchdog`]. In a box: a runtime's `block_on` and `spawn` are compiled again for each type of future, and every test's is a type
/// of its own, which took half of the time that the large programs of tests needed.
#[track_caller]
pub(crate) fn block_on<T>(
    runtime: &Runtime,
    limit: Duration,
    future: impl Future<Output = T>,
) -> T {
    let future: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(future);
    runtime.block_on(watchdog(limit, future))
}

/// Runs `future` and panics with a picture of the process when it has not ended after `limit`.
///
/// The clock is a thread of its own, so that it works under a paused Tokio clock. A future that never returns from its
/// poll cannot be made to panic: then the whole process is aborted, a little later.
#[track_caller]
pub(crate) fn watchdog<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    patient_watchdog(limit, Duration::from_secs(5), future)
}

/// The same, with the time after which a future that does not return ends the process.
#[track_caller]
pub(crate) fn patient_watchdog<F: Future>(
    limit: Duration,
    patience: Duration,
    future: F,
) -> impl Future<Output = F::Output> {
    let place = Location::caller();
    async move {
        let mut watch = Watch::start(limit, patience, place);
        let mut future = pin!(future);
        poll_fn(|context| {
            // First: a future that was woken by nobody else, but is ready when it is looked at, has hung.
            watch.check(context);
            future.as_mut().poll(context)
        })
        .await
    }
}

/// One clock. What it does is compiled once, and not for each type of future.
struct Watch {
    /// Dropped when the future has ended, or was dropped itself.
    _done: mpsc::Sender<()>,
    barked: oneshot::Receiver<()>,
    limit: Duration,
    place: &'static Location<'static>,
}

impl Watch {
    fn start(limit: Duration, patience: Duration, place: &'static Location<'static>) -> Self {
        let (done, is_done) = mpsc::channel::<()>();
        let (bark, barked) = oneshot::channel::<()>();
        let clock = move || {
            if is_done.recv_timeout(limit) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let _ = bark.send(());
            if is_done.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!(
                    "watchdog: the future at {place} blocks its thread\n{}",
                    picture()
                );
                std::process::abort();
            }
        };
        thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(clock)
            .expect("a thread");
        Self {
            _done: done,
            barked,
            limit,
            place,
        }
    }

    fn check(&mut self, context: &mut Context<'_>) {
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.barked).poll(context) {
            panic!(
                "watchdog: still pending after {:?} at {}\n{}",
                self.limit,
                self.place,
                picture()
            );
        }
    }
}

/// Threads and file descriptors of this process.
fn picture() -> String {
    let mut text = String::new();
    for task in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |name: &str| {
            fs::read_to_string(task.path().join(name))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let state = read("status")
            .lines()
            .find_map(|line| line.strip_prefix("State:").map(str::to_owned));
        let (name, place) = (read("comm"), read("wchan"));
        let _ = writeln!(
            text,
            "  thread {name}: {} in {place}",
            state.unwrap_or_default().trim()
        );
    }
    for fd in fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
    {
        if let Ok(target) = fs::read_link(fd.path()) {
            let _ = writeln!(
                text,
                "  fd {}: {}",
                fd.file_name().display(),
                target.display()
            );
        }
    }
    text
}
