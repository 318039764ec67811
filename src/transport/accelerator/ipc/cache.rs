//! What is open, kept to be found again: a bounded number, each opened once however many ask at the same time.
//!
//! ```text
//!            begin                finish                  superseded, or evicted while unused
//!   (none) ────────▶ Opening ───────────────▶ Open ───────────────────────────────────────────▶ closed
//!                       │ failed, or nobody could run it   │ clones: leases                       ▲
//!                       ▼                                  └── superseded while leased: ── last ──┘
//!                    (none)                                                             lease
//! ```
//! Opening and closing take long and happen on threads that may block, never under the lock. Opening belongs to no future: whoever
//! began it may be dropped, and the next finds it under way or done.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use tokio::sync::watch;

use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// What an entry is found by.
pub(crate) trait Key: Clone + Eq + Hash + Send + Sync + 'static {
    /// Whether the other, not equal, cannot be any more once this one is.
    fn supersedes(&self, other: &Self) -> bool;
}

/// See the module. A cheap clone.
pub(crate) struct Cache<K: Key, V: Send + Sync + 'static>(Arc<Inner<K, V>>);

struct Inner<K: Key, V: Send + Sync + 'static> {
    limit: usize,
    state: Mutex<State<K, V>>,
}

struct State<K: Key, V: Send + Sync + 'static> {
    entries: HashMap<K, Entry<V>>,
    /// What is open or being opened, in `entries` or leased on without being there. Not: what an opening job closes first.
    live: usize,
    /// Counts uses.
    clock: u64,
    counts: Counts,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Openings begun.
    pub(crate) openings: u64,
    /// Requests that found it open, or being opened.
    pub(crate) hits: u64,
    /// Closed, or to be closed by their last user, to make room or because they were superseded.
    pub(crate) evictions: u64,
    /// Open or being opened now.
    pub(crate) live: usize,
}

enum Entry<V> {
    Opening(watch::Receiver<Option<Result<()>>>),
    Open { value: Arc<V>, used: u64 },
}

/// An entry in use. The last one of an entry that is kept no longer has it closed, on a thread that may block.
pub(crate) struct Lease<K: Key, V: Send + Sync + 'static> {
    /// Always there until drop.
    value: Option<Arc<V>>,
    cache: Arc<Inner<K, V>>,
}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// A cache of at most `limit` entries, at least 1.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Inner {
            limit: limit.max(1),
            state: Mutex::new(State {
                entries: HashMap::new(),
                live: 0,
                clock: 0,
                counts: Counts::default(),
            }),
        }))
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.0.state.lock();
        Counts {
            live: state.live,
            ..state.counts
        }
    }

    /// What is open.
    pub(crate) fn find(&self, key: &K) -> Option<Lease<K, V>> {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        match state.entries.get_mut(key)? {
            Entry::Open { value, used } => {
                state.clock += 1;
                *used = state.clock;
                state.counts.hits += 1;
                Some(Lease::of(value, &self.0))
            }
            Entry::Opening(_) => None,
        }
    }

    /// What is open, or opened now by `open` on a thread that may block. `keep` says, on that thread, of what is not used whether it is worth keeping.
    ///
    /// # Cancel safety
    /// What was begun goes on and is kept.
    /// Errors: of `open`, for all who waited for it; `Exhausted`: all that may be open is in use, or there is no thread.
    pub(crate) async fn get(
        &self,
        key: &K,
        keep: impl Fn(&K) -> bool + Send + 'static,
        open: impl FnOnce() -> Result<V> + Send + 'static,
    ) -> Result<Lease<K, V>> {
        if let Some(lease) = self.find(key) {
            return Ok(lease);
        }
        let mut end = match self.begin(key)? {
            Begun::Open(lease) => return Ok(lease),
            Begun::Joined(end) => end,
            Begun::Leads(job, end) => {
                off_runtime(move || {
                    job.cache.forget_unless(keep);
                    job.run(open);
                });
                end
            }
        };
        // Nothing but the cache holds it, so that a job which has told, and is not gone yet, is no user.
        let told = end.wait_for(Option::is_some).await.map(|end| end.clone());
        told.ok().flatten().unwrap_or_else(|| Err(not_run()))?;
        self.lease(key).ok_or_else(|| {
            let text =
                "it was closed for others as soon as it was open: all that may be open is in use";
            Error::new(ErrorKind::Exhausted, text)
        })
    }

    /// What was opened just now, if it is open still.
    fn lease(&self, key: &K) -> Option<Lease<K, V>> {
        match self.0.state.lock().entries.get(key)? {
            Entry::Open { value, .. } => Some(Lease::of(value, &self.0)),
            Entry::Opening(_) => None,
        }
    }

    fn begin(&self, key: &K) -> Result<Begun<K, V>> {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        state.clock += 1;
        match state.entries.get_mut(key) {
            // Opened since the first look.
            Some(Entry::Open { value, used }) => {
                *used = state.clock;
                state.counts.hits += 1;
                return Ok(Begun::Open(Lease::of(value, &self.0)));
            }
            Some(Entry::Opening(end)) => {
                state.counts.hits += 1;
                return Ok(Begun::Joined(end.clone()));
            }
            None => {}
        }
        let mut first = Vec::new();
        if !state.make_room(key, self.0.limit, &mut first) {
            let live = state.live;
            drop(guard);
            Closing::all(&self.0, first).run();
            let text = format!(
                "{live} allocations of other processes are in use, the most that may be open at once"
            );
            return Err(Error::new(ErrorKind::Exhausted, text));
        }
        state.live += 1;
        state.counts.openings += 1;
        let (sender, end) = watch::channel(None);
        state
            .entries
            .insert(key.clone(), Entry::Opening(end.clone()));
        let job = Job {
            cache: self.clone(),
            key: key.clone(),
            sender,
            first,
            done: false,
        };
        Ok(Begun::Leads(job, end))
    }

    /// Closes what is not used and not worth keeping. On a thread that may block.
    pub(crate) fn forget_unless(&self, keep: impl Fn(&K) -> bool) {
        let keys: Vec<K> = {
            let state = self.0.state.lock();
            let open = |(key, entry): (&K, &Entry<V>)| match entry {
                Entry::Open { value, .. } if Arc::strong_count(value) == 1 => Some(key.clone()),
                _ => None,
            };
            state.entries.iter().filter_map(open).collect()
        };
        let gone: Vec<K> = keys.into_iter().filter(|key| !keep(key)).collect();
        let mut values = Vec::new();
        {
            let mut state = self.0.state.lock();
            for key in &gone {
                // It may have been found meanwhile.
                if matches!(state.entries.get(key), Some(Entry::Open { value, .. }) if Arc::strong_count(value) == 1)
                {
                    values.extend(state.take(key));
                }
            }
        }
        for value in values {
            value.close(&self.0);
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> State<K, V> {
    /// Takes out what `key` supersedes, and the longest unused until there is room for one more; `false`: there is none.
    fn make_room(&mut self, key: &K, limit: usize, out: &mut Vec<Taken<V>>) -> bool {
        let old = |(other, entry): (&K, &Entry<V>)| match entry {
            Entry::Open { .. } if key.supersedes(other) => Some(other.clone()),
            _ => None,
        };
        let superseded: Vec<K> = self.entries.iter().filter_map(old).collect();
        for other in superseded {
            out.extend(self.take(&other));
        }
        while self.live >= limit {
            let unused = |(other, entry): (&K, &Entry<V>)| match entry {
                Entry::Open { value, used } if Arc::strong_count(value) == 1 => {
                    Some((*used, other.clone()))
                }
                _ => None,
            };
            let oldest = self.entries.iter().filter_map(unused);
            let Some((_, oldest)) = oldest.min_by_key(|(used, _)| *used) else {
                return false;
            };
            out.extend(self.take(&oldest));
        }
        true
    }

    /// Takes an open entry out. When nobody uses it, it counts no more: the caller closes it before it opens anything.
    fn take(&mut self, key: &K) -> Option<Taken<V>> {
        match self.entries.remove(key)? {
            Entry::Open { value, .. } => {
                self.counts.evictions += 1;
                // Clones are made of entries under this lock, or of leases: of one there is, nobody can make two.
                let counted = Arc::strong_count(&value) > 1;
                self.live -= usize::from(!counted);
                Some(Taken { value, counted })
            }
            opening @ Entry::Opening(_) => {
                self.entries.insert(key.clone(), opening);
                None
            }
        }
    }
}

/// An entry that is kept no longer.
struct Taken<V> {
    value: Arc<V>,
    /// Whether it still counts as live.
    counted: bool,
}

impl<V: Send + Sync + 'static> Taken<V> {
    /// Closes it here, unless somebody uses it, who then does.
    fn close<K: Key>(self, cache: &Inner<K, V>) {
        if let Some(value) = Arc::into_inner(self.value) {
            drop(value);
            cache.state.lock().live -= usize::from(self.counted);
        }
    }
}

enum Begun<K: Key, V: Send + Sync + 'static> {
    Open(Lease<K, V>),
    Joined(watch::Receiver<Option<Result<()>>>),
    Leads(Job<K, V>, watch::Receiver<Option<Result<()>>>),
}

/// An opening under way. One that is dropped undone has failed.
struct Job<K: Key, V: Send + Sync + 'static> {
    cache: Cache<K, V>,
    key: K,
    sender: watch::Sender<Option<Result<()>>>,
    /// To be closed first.
    first: Vec<Taken<V>>,
    done: bool,
}

impl<K: Key, V: Send + Sync + 'static> Job<K, V> {
    fn run(mut self, open: impl FnOnce() -> Result<V>) {
        for value in self.first.drain(..) {
            value.close(&self.cache.0);
        }
        let opened = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Io,
                "opening another process's device memory panicked",
            ))
        });
        self.finish(opened);
    }

    fn finish(&mut self, opened: Result<V>) {
        self.done = true;
        let inner = &self.cache.0;
        let end = {
            let mut state = inner.state.lock();
            let state = &mut *state;
            match opened {
                Ok(value) => {
                    state.clock += 1;
                    let (value, used) = (Arc::new(value), state.clock);
                    let open = Entry::Open { value, used };
                    state.entries.insert(self.key.clone(), open);
                    Ok(())
                }
                Err(error) => {
                    state.entries.remove(&self.key);
                    state.live -= 1;
                    Err(error)
                }
            }
        };
        // Not under the lock: this wakes those who wait. Nobody may.
        self.sender.send_replace(Some(end));
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Job<K, V> {
    fn drop(&mut self) {
        if !self.done {
            Closing::all(&self.cache.0, std::mem::take(&mut self.first)).run();
            self.finish(Err(not_run()));
        }
    }
}

#[cold]
fn not_run() -> Error {
    Error::new(
        ErrorKind::Exhausted,
        "no thread to open another process's device memory, or its runtime is shutting down",
    )
}

impl<K: Key, V: Send + Sync + 'static> Lease<K, V> {
    /// Of an entry, made under the lock.
    fn of(value: &Arc<V>, cache: &Arc<Inner<K, V>>) -> Self {
        Self {
            value: Some(Arc::clone(value)),
            cache: Arc::clone(cache),
        }
    }

    /// What is open.
    pub(crate) fn get(&self) -> Option<&V> {
        self.value.as_deref()
    }
}

impl<K: Key, V: Send + Sync + 'static> Clone for Lease<K, V> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            cache: Arc::clone(&self.cache),
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Lease<K, V> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take().and_then(Arc::into_inner) {
            let closing = Closing {
                values: vec![value],
                live: 1,
                cache: Arc::clone(&self.cache),
            };
            closing.run();
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for Lease<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lease")
    }
}

impl<K: Key, V: Send + Sync + 'static> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Key, V: Send + Sync + 'static> fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

/// Values that are closed by its drop, here.
struct Closing<K: Key, V: Send + Sync + 'static> {
    values: Vec<V>,
    /// How many of them count as live.
    live: usize,
    cache: Arc<Inner<K, V>>,
}

impl<K: Key, V: Send + Sync + 'static> Closing<K, V> {
    /// Those of them that nobody uses.
    fn all(cache: &Arc<Inner<K, V>>, taken: Vec<Taken<V>>) -> Self {
        let mut this = Self {
            values: Vec::new(),
            live: 0,
            cache: Arc::clone(cache),
        };
        for Taken { value, counted } in taken {
            if let Some(value) = Arc::into_inner(value) {
                this.values.push(value);
                this.live += usize::from(counted);
            }
        }
        this
    }

    /// Closes them elsewhere when this thread is a runtime's, here otherwise. Not under the lock.
    fn run(self) {
        if !self.values.is_empty() && tokio::runtime::Handle::try_current().is_ok() {
            off_runtime(move || drop(self));
        }
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Closing<K, V> {
    fn drop(&mut self) {
        self.values.clear();
        self.cache.state.lock().live -= self.live;
    }
}

impl<K: Key, V: Send + Sync + 'static> Drop for Inner<K, V> {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut self.state.get_mut().entries);
        if !entries.is_empty() && tokio::runtime::Handle::try_current().is_ok() {
            off_runtime(move || drop(entries));
        }
    }
}

/// Runs it on a thread that may block; where there is none, it is dropped.
fn off_runtime(job: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        // Tokio panics when it can start no thread at all.
        Ok(runtime) => drop(catch_unwind(AssertUnwindSafe(|| {
            drop(runtime.spawn_blocking(job));
        }))),
        Err(_) => drop(
            thread::Builder::new()
                .name("wharf-dev-ipc".into())
                .spawn(job),
        ),
    }
}
