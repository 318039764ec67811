//! Groups that meet in etcd: who is there, by keys that live as long as a lease, and a bootstrap for ranks that know nothing but etcd.
//!
//! ```text
//! key        PREFIX/GROUP/NAME, held by a lease
//! value      a random number of the member, 16 bytes | what it says of itself
//! ```
//!
//! A member renews its lease three times in its length. When etcd does not answer, it goes on trying; when etcd is back and does not know the
//! lease any more, a new one is made and the key put again. Who watches finds out what changed meanwhile.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, EventType, GetOptions, KeyValue, PutOptions, Txn,
    TxnOp, WatchOptions,
};
use futures::{Stream, StreamExt};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    contract::Bootstrap,
    limits::{MAX_SIZE, after, check_rank, check_runtime, check_size},
    options::BootstrapOptions,
    socket::random,
    tcp::{TcpBootstrap, TcpRoot},
    unique_id::UniqueId,
};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// Length of the member's number before the value.
const NUMBER: usize = 16;
/// Longest value that is taken for a member's.
const MAX_VALUE: usize = 64 << 10;
/// Most members that are watched at once.
const MAX_MEMBERS: usize = MAX_SIZE;
/// Members that are fetched at once.
const PAGE: i64 = 256;
/// Longest lease that etcd gives, in seconds.
const MAX_LEASE: i64 = 9_000_000_000;
/// What one request may take.
const REQUEST: Duration = Duration::from_secs(3);
/// Pauses between attempts to reach etcd: from the first, doubled, to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Which etcd, and how.
#[derive(Clone)]
pub struct EtcdOptions {
    endpoints: Vec<String>,
    prefix: String,
    lease: Duration,
    listen: String,
    user: Option<(String, String)>,
}

impl EtcdOptions {
    /// etcd at these places (`host:port` or URLs), keys under `wharf`, leases of 10 seconds, rank 0 listening at a free port of all addresses.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "wharf".to_owned(),
            lease: Duration::from_secs(10),
            listen: "0.0.0.0:0".to_owned(),
            user: None,
        }
    }

    /// What all keys begin with.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a member that says nothing is taken to be there, in whole seconds. etcd makes short ones longer: 2 seconds by its own defaults. Its
    /// longest are 285 years.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Where rank 0 listens, as for [`TcpRoot::bind`].
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// As whom to log in.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    fn folder(&self, group: &str) -> Result<String> {
        if group.is_empty() || group.len() > 255 || group.contains('/') {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the name of a group has 1 to 255 bytes, and no `/`",
            ));
        }
        Ok(format!("{}/{group}/", self.prefix.trim_end_matches('/')))
    }

    fn lease_seconds(&self) -> i64 {
        i64::try_from(self.lease.as_secs())
            .unwrap_or(i64::MAX)
            .clamp(1, MAX_LEASE)
    }

    async fn connect(&self) -> Result<Client, etcd_client::Error> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(REQUEST)
            // An etcd whose host is gone without a word.
            .with_keep_alive(Duration::from_secs(5), REQUEST)
            .with_keep_alive_while_idle(true);
        if let Some((name, password)) = &self.user {
            options = options.with_user(name, password);
        }
        request(Client::connect(&self.endpoints, Some(options))).await
    }
}

/// Without the password.
impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("lease", &self.lease)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

/// One of a group in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name: different from that of all others.
    pub name: String,
    /// What it says of itself: its address, for one.
    pub address: Bytes,
}

/// What happens in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// It has come, or was there already.
    Joined(Member),
    /// It has left, or its lease has run out.
    Left(Member),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined(member) => write!(f, "{} joined", member.name),
            Self::Left(member) => write!(f, "{} left", member.name),
        }
    }
}

/// A place in a group, kept until it is dropped.
#[derive(Debug)]
pub struct Membership {
    options: EtcdOptions,
    folder: String,
    name: String,
    registered: watch::Receiver<bool>,
    stop: watch::Sender<bool>,
    keeper: Option<JoinHandle<()>>,
}

/// What the task that keeps a place knows.
struct Keeper {
    options: EtcdOptions,
    key: String,
    value: Vec<u8>,
    registered: watch::Sender<bool>,
    /// Why it is not registered.
    last: Arc<Mutex<Option<Error>>>,
    /// Becomes true when trying again is of no use.
    over: watch::Sender<bool>,
}

/// What the task has of etcd's.
#[derive(Default)]
struct Held {
    /// A connection that has not failed.
    client: Option<Client>,
    /// Leases of which it is not known whether they have the place.
    made: Vec<i64>,
    /// The lease that was last known to have the place.
    place: Option<i64>,
}

impl Membership {
    /// Takes the place `name` in a group, waiting until `deadline` at most.
    ///
    /// # Errors
    /// `Configuration` when another holds the name, and still does when its lease would have run out; `DeadlineExceeded` when etcd did not answer;
    /// `InvalidArgument` for names that are empty, too long or hold a `/`; `AuthenticationFailed` and `AccessDenied` by etcd.
    ///
    /// # Cancel safety
    /// Dropped, the place is given back.
    pub async fn join(
        options: &EtcdOptions,
        group: &str,
        name: &str,
        address: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<Self> {
        Self::claim(options, group, name, &address.into(), after(deadline), true).await
    }

    /// Joins; `patient` waits for the lease of one that has the name to run out.
    async fn claim(
        options: &EtcdOptions,
        group: &str,
        name: &str,
        address: &Bytes,
        deadline: Instant,
        patient: bool,
    ) -> Result<Self> {
        check_runtime()?;
        let folder = options.folder(group)?;
        if name.is_empty() || name.len() > 255 || name.contains('/') {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the name of a member has 1 to 255 bytes, and no `/`",
            ));
        }
        if address.len() > MAX_VALUE - NUMBER {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "what a member says of itself is longer than 64 KiB",
            ));
        }
        let mut value = random::<NUMBER>()?.to_vec();
        value.extend_from_slice(address);
        let last = Arc::new(Mutex::new(None));
        let (registered, mut is_registered) = watch::channel(false);
        let (over, mut is_over) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let keeper = Keeper {
            options: options.clone(),
            key: format!("{folder}{name}"),
            value,
            registered,
            last: last.clone(),
            over,
        };
        let membership = Self {
            options: options.clone(),
            folder,
            name: name.to_owned(),
            registered: is_registered.clone(),
            stop,
            keeper: Some(tokio::spawn(keeper.keep(stopped))),
        };
        // One that died without a word holds its name for as long as its lease.
        let taken_until = after(match patient {
            true => options.lease.saturating_add(Duration::from_secs(2)),
            false => Duration::ZERO,
        });
        let taken = |error: &Option<Error>| {
            error
                .as_ref()
                .is_some_and(|error| error.kind() == ErrorKind::Configuration)
        };
        let waiting = async {
            loop {
                tokio::select! {
                    biased;
                    done = is_registered.wait_for(|registered| *registered) => {
                        if done.is_ok() {
                            return Ok(());
                        }
                        // The task is over: it has said why.
                        return Err(());
                    }
                    () = told_to(&mut is_over) => return Err(()),
                    () = sleep(Duration::from_millis(100)) => {
                        if Instant::now() >= taken_until && taken(&last.lock()) {
                            return Err(());
                        }
                    }
                }
            }
        };
        let waited = timeout_at(deadline, waiting).await;
        if let Ok(Ok(())) = waited {
            return Ok(membership);
        }
        let last = last.lock().take();
        Err(match (waited, last) {
            (Ok(_), Some(error)) => error,
            (_, Some(error)) if error.kind() == ErrorKind::Configuration => error,
            (_, last) => {
                let error = Error::new(
                    ErrorKind::DeadlineExceeded,
                    format!(
                        "etcd at {} did not answer in time",
                        options.endpoints.join(", ")
                    ),
                );
                match last {
                    Some(last) => error.with_source(last),
                    None => error,
                }
            }
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the last word from etcd was that the place is this member's. False while etcd does not answer, and until the place is taken anew.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        *self.registered.borrow()
    }

    /// Who is there, and then who joins and leaves. This member is among them.
    #[must_use]
    pub fn members(&self) -> Members {
        Members::start(self.options.clone(), self.folder.clone())
    }

    /// Gives the place back, and waits until etcd has heard it; three seconds at most.
    ///
    /// # Cancel safety
    /// Dropped, it is given back in the background.
    pub async fn leave(mut self) {
        self.stop.send_replace(true);
        if let Some(keeper) = self.keeper.take() {
            // It ends by itself, and does not panic.
            let _ = keeper.await;
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl Keeper {
    /// Holds the place until it is told to stop.
    async fn keep(self, mut stop: watch::Receiver<bool>) {
        let mut pause = PAUSES.0;
        let mut held = Held::default();
        loop {
            let began = Instant::now();
            let ended = tokio::select! {
                ended = self.session(&mut held) => ended,
                // Its sender goes with the membership.
                () = told_to(&mut stop) => return self.give_back(&mut held).await,
            };
            self.registered.send_replace(false);
            let error = ended.err().unwrap_or_else(|| {
                Error::new(ErrorKind::StaleKey, "etcd does not know the lease any more")
            });
            tracing::warn!(target: "wharf::bootstrap", key = %self.key, %error, "a place in etcd is to be taken again");
            let over = matches!(
                error.kind(),
                ErrorKind::AuthenticationFailed
                    | ErrorKind::AccessDenied
                    | ErrorKind::InvalidArgument
            );
            let is_of_no_use = matches!(
                error.kind(),
                ErrorKind::Configuration | ErrorKind::AccessDenied
            );
            *self.last.lock() = Some(error);
            // What is of no use is given back: tries may be many.
            if over || is_of_no_use {
                self.give_back(&mut held).await;
            }
            held.client = None;
            if over {
                self.over.send_replace(true);
                return;
            }
            if began.elapsed() > PAUSES.1 * 2 {
                pause = PAUSES.0;
            }
            tokio::select! {
                () = sleep(pause) => {}
                // When only the way to etcd has failed, the place is this member's still.
                () = told_to(&mut stop) => return self.give_back(&mut held).await,
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Gives leases back. What etcd does not hear in time runs out.
    async fn give_back(&self, held: &mut Held) {
        let mut leases = std::mem::take(&mut held.made);
        leases.extend(held.place.take());
        if leases.is_empty() {
            return;
        }
        let client = held.client.take();
        let tell = async {
            let mut client = match client {
                Some(client) => client,
                None => self.options.connect().await?,
            };
            for lease in leases {
                // It may have run out.
                let _ = client.lease_revoke(lease).await;
            }
            Ok(())
        };
        let _ = request(tell).await;
    }

    /// Takes the place and renews its lease, for as long as etcd goes along. Ends well when the lease is gone.
    async fn session(&self, held: &mut Held) -> Result<()> {
        let mut client = self.options.connect().await.map_err(told)?;
        held.client = Some(client.clone());
        let seconds = self.options.lease_seconds();
        let granted = request(client.lease_grant(seconds, None))
            .await
            .map_err(told)?;
        let lease = granted.id();
        held.made.push(lease);
        self.put(&mut client, lease).await?;
        // None of the others has it any more: they run out.
        held.made.clear();
        held.place = Some(lease);
        let keep = client.lease_keep_alive(lease);
        let (mut keeper, mut answers) = request(keep).await.map_err(told)?;
        self.registered.send_replace(true);
        // etcd may have made it longer.
        let mut length = Duration::from_secs(granted.ttl().max(1) as u64);
        loop {
            sleep(length / 3).await;
            request(keeper.keep_alive()).await.map_err(told)?;
            match request(answers.message()).await.map_err(told)? {
                Some(answer) if answer.ttl() > 0 => {
                    length = Duration::from_secs(answer.ttl() as u64);
                    self.registered.send_replace(true);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Puts the key if nobody has it, or if it is this member's of before.
    async fn put(&self, client: &mut Client, lease: i64) -> Result<()> {
        let conditions = [
            Compare::create_revision(self.key.as_str(), CompareOp::Equal, 0),
            Compare::value(self.key.as_str(), CompareOp::Equal, self.value.as_slice()),
        ];
        for condition in conditions {
            let options = PutOptions::new().with_lease(lease);
            let put = TxnOp::put(self.key.as_str(), self.value.as_slice(), Some(options));
            let answer = request(client.txn(Txn::new().when([condition]).and_then([put])))
                .await
                .map_err(told)?;
            if answer.succeeded() {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::Configuration,
            format!(
                "two members have one name: {} is another's in etcd",
                self.key
            ),
        ))
    }
}

/// Who is in a group, and then who joins and leaves: made by [`Membership::members`], or by [`Members::of`] without a place in it. Never ends. While
/// etcd is away nothing comes; when it is back, what changed meanwhile does.
#[derive(Debug)]
pub struct Members {
    changes: mpsc::Receiver<Change>,
    task: JoinHandle<()>,
}

impl Members {
    /// Watches a group from outside.
    ///
    /// # Errors
    /// `InvalidArgument` for a group's name that is none, and outside a Tokio runtime.
    pub fn of(options: &EtcdOptions, group: &str) -> Result<Self> {
        check_runtime()?;
        let folder = options.folder(group)?;
        Ok(Self::start(options.clone(), folder))
    }

    fn start(options: EtcdOptions, folder: String) -> Self {
        // What nobody takes is not fetched.
        let (sink, changes) = mpsc::channel(64);
        let task = tokio::spawn(async move {
            let mut known = BTreeMap::new();
            let mut pause = PAUSES.0;
            loop {
                let before = Instant::now();
                if let Err(error) = observe(&options, &folder, &mut known, &sink).await {
                    tracing::warn!(target: "wharf::bootstrap", group = %folder, %error, "watching a group in etcd begins anew");
                }
                if sink.is_closed() {
                    return;
                }
                if before.elapsed() > PAUSES.1 * 2 {
                    pause = PAUSES.0;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        });
        Self { changes, task }
    }
}

impl Stream for Members {
    type Item = Change;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Change>> {
        self.changes.poll_recv(cx)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Fetches who is there, tells what is different from `known`, and then watches. Ends when etcd does, or nobody listens.
async fn observe(
    options: &EtcdOptions,
    folder: &str,
    known: &mut BTreeMap<String, Vec<u8>>,
    sink: &mpsc::Sender<Change>,
) -> Result<()> {
    let mut client = options.connect().await.map_err(told)?;
    let (there, revision) = fetch(&mut client, folder).await?;
    let gone: Vec<String> = known
        .iter()
        .filter(|(name, value)| there.get(*name) != Some(value))
        .map(|(name, _)| name.clone())
        .collect();
    for name in gone {
        if !note(known, sink, name, None).await {
            return Ok(());
        }
    }
    for (name, value) in there {
        if !note(known, sink, name, Some(value)).await {
            return Ok(());
        }
    }
    let from = WatchOptions::new()
        .with_prefix()
        .with_start_revision(revision + 1);
    let mut watching = request(client.watch(folder, Some(from)))
        .await
        .map_err(told)?;
    while let Some(answer) = watching.message().await.map_err(told)? {
        if answer.canceled() {
            // Compacted, most likely: all is fetched anew.
            return Ok(());
        }
        for event in answer.events() {
            let Some((kv, name)) = event.kv().and_then(|kv| Some((kv, name_of(kv, folder)?)))
            else {
                continue;
            };
            let value = match event.event_type() {
                EventType::Put => Some(kv.value().to_vec()),
                EventType::Delete => None,
            };
            if !note(known, sink, name, value).await {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Who is there now.
async fn members_now(options: &EtcdOptions, group: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let folder = options.folder(group)?;
    let mut client = options.connect().await.map_err(told)?;
    Ok(fetch(&mut client, &folder).await?.0)
}

/// The numbers below `size` that no member has, the lowest first.
fn free<V>(size: usize, taken: &BTreeMap<String, V>) -> impl Iterator<Item = usize> {
    (0..size).filter(|rank| !taken.contains_key(&rank.to_string()))
}

/// All members, and the state of etcd that they are of.
async fn fetch(client: &mut Client, folder: &str) -> Result<(BTreeMap<String, Vec<u8>>, i64)> {
    // The byte after `/`.
    let end = format!("{}0", folder.trim_end_matches('/'));
    let mut there = BTreeMap::new();
    let mut from = folder.as_bytes().to_vec();
    let mut revision = 0;
    loop {
        let page = GetOptions::new()
            .with_range(end.as_str())
            .with_limit(PAGE)
            .with_revision(revision);
        let answer = request(client.get(from.as_slice(), Some(page)))
            .await
            .map_err(told)?;
        if revision == 0 {
            revision = answer.header().map_or(0, |header| header.revision());
        }
        for kv in answer.kvs() {
            // A longer one is nobody's, and not kept.
            if let Some(name) = name_of(kv, folder).filter(|_| kv.value().len() <= MAX_VALUE) {
                there.insert(name, kv.value().to_vec());
            }
        }
        if there.len() > MAX_MEMBERS {
            return Err(Error::new(
                ErrorKind::Exhausted,
                format!("there are more than {MAX_MEMBERS} members under {folder}"),
            ));
        }
        match answer.kvs().last() {
            Some(last) if answer.more() => {
                from = last.key().to_vec();
                from.push(0);
            }
            _ => return Ok((there, revision)),
        }
    }
}

/// The member's name, of a key that is one's.
fn name_of(kv: &KeyValue, folder: &str) -> Option<String> {
    let name = kv.key_str().ok()?.strip_prefix(folder)?;
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

/// Notes what a member's value is now, and tells what that means. False when nobody listens.
async fn note(
    known: &mut BTreeMap<String, Vec<u8>>,
    sink: &mpsc::Sender<Change>,
    name: String,
    value: Option<Vec<u8>>,
) -> bool {
    let member = |name: &str, value: &[u8]| Member {
        name: name.to_owned(),
        address: Bytes::copy_from_slice(value.get(NUMBER..).unwrap_or_default()),
    };
    let value = value.filter(|value| {
        let good = (NUMBER..=MAX_VALUE).contains(&value.len());
        if !good {
            tracing::warn!(target: "wharf::bootstrap", name, "a value in etcd is no member's");
        }
        good
    });
    if known.get(&name) == value.as_ref() {
        return true;
    }
    if known.len() >= MAX_MEMBERS && value.is_some() && !known.contains_key(&name) {
        tracing::warn!(target: "wharf::bootstrap", name, "too many members: one is left out");
        return true;
    }
    let mut changes = Vec::new();
    if let Some(old) = known.remove(&name) {
        changes.push(Change::Left(member(&name, &old)));
    }
    if let Some(value) = value {
        changes.push(Change::Joined(member(&name, &value)));
        known.insert(name, value);
    }
    for change in changes {
        if sink.send(change).await.is_err() {
            return false;
        }
    }
    true
}

/// Waits until the word is given, or nobody can give it any more.
async fn told_to(word: &mut watch::Receiver<bool>) {
    let _ = word.wait_for(|word| *word).await;
}

/// A request with an end.
async fn request<T>(
    future: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, etcd_client::Error> {
    timeout(REQUEST, future).await.unwrap_or_else(|_| {
        Err(etcd_client::Error::IoError(
            std::io::ErrorKind::TimedOut.into(),
        ))
    })
}

/// What etcd, or the way to it, said.
fn told(error: etcd_client::Error) -> Error {
    // The numbers of gRPC's codes.
    let kind = match &error {
        etcd_client::Error::InvalidArgs(_) | etcd_client::Error::InvalidUri(_) => {
            ErrorKind::InvalidArgument
        }
        etcd_client::Error::GRpcStatus(status) => match status.code() as i32 {
            // etcd answers so to a wrong name or password.
            3 | 16 => ErrorKind::AuthenticationFailed,
            7 => ErrorKind::AccessDenied,
            _ => ErrorKind::Io,
        },
        _ => ErrorKind::Io,
    };
    Error::new(kind, "etcd").with_source(error)
}

/// One rank of a group that meets in etcd: a [`TcpBootstrap`] whose ranks find each other there, and a [`Membership`] that is kept for as long as it lives.
///
/// Members are named by their numbers; what rank 0 says of itself is the group's [`UniqueId`]. Who can read the keys can join.
#[derive(Debug)]
pub struct EtcdBootstrap {
    bootstrap: TcpBootstrap,
    membership: Membership,
}

impl EtcdBootstrap {
    /// Joins a group of `size`, as rank `rank`, or as the lowest that nobody has.
    ///
    /// # Errors
    /// `Configuration` when another process has the number, or all are taken until the deadline, or ranks count differently; else as
    /// [`Membership::join`] and [`TcpBootstrap::join`].
    ///
    /// # Cancel safety
    /// As [`TcpBootstrap::join`]; the place in etcd is given back.
    pub async fn join(
        etcd: &EtcdOptions,
        group: &str,
        rank: Option<usize>,
        size: usize,
        options: &BootstrapOptions,
    ) -> Result<Self> {
        check_size(size)?;
        check_runtime()?;
        let deadline = after(options.deadline);
        if let Some(rank) = rank {
            check_rank(rank, size)?;
            let place = Place::take(etcd, group, rank, deadline, true).await?;
            return place.meet(size, options, deadline).await;
        }
        loop {
            // Trying for one that is taken takes long. Where the list is not to be had, the tries tell why.
            let half = deadline.saturating_duration_since(Instant::now()) / 2;
            let listed = timeout(half, members_now(etcd, group)).await;
            let taken = listed.ok().and_then(Result::ok).unwrap_or_default();
            for rank in free(size, &taken) {
                match Place::take(etcd, group, rank, deadline, false).await {
                    // Another's. What goes wrong with a place that was taken is no reason to try another.
                    Err(error) if error.kind() == ErrorKind::Configuration => {}
                    Err(error) => return Err(error),
                    Ok(place) => return place.meet(size, options, deadline).await,
                }
            }
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    format!("all {size} numbers are taken"),
                ));
            }
            sleep(PAUSES.1 / 2).await;
        }
    }

    /// Which ranks are there, by their leases: named by their numbers.
    #[must_use]
    pub fn members(&self) -> Members {
        self.membership.members()
    }

    /// This rank's place in etcd.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }
}

/// A number in a group that is this process's, before it is a rank.
struct Place {
    rank: usize,
    /// Of rank 0.
    root: Option<TcpRoot>,
    membership: Membership,
}

impl Place {
    /// # Errors
    /// As [`Membership::claim`]: `Configuration` when another has it.
    async fn take(
        etcd: &EtcdOptions,
        group: &str,
        rank: usize,
        deadline: Instant,
        patient: bool,
    ) -> Result<Self> {
        let root = match rank {
            0 => Some(TcpRoot::bind(&etcd.listen).await?),
            _ => None,
        };
        let address = root.as_ref().map_or_else(Bytes::new, |root| {
            Bytes::copy_from_slice(&root.unique_id().to_bytes())
        });
        let name = rank.to_string();
        let membership = Membership::claim(etcd, group, &name, &address, deadline, patient).await?;
        Ok(Self {
            rank,
            root,
            membership,
        })
    }

    /// Meets the others.
    async fn meet(
        self,
        size: usize,
        options: &BootstrapOptions,
        deadline: Instant,
    ) -> Result<EtcdBootstrap> {
        let Self {
            rank,
            root,
            membership,
        } = self;
        let left = || {
            let left = deadline.saturating_duration_since(Instant::now());
            options.clone().deadline(left)
        };
        if let Some(root) = root {
            let bootstrap = root.join_for(size, &left(), options.deadline).await?;
            return Ok(EtcdBootstrap {
                bootstrap,
                membership,
            });
        }
        let mut members = membership.members();
        let mut attempt = None;
        // A rank 0 that is dead stands there until its lease runs out: a new one's id replaces the attempt.
        let joining = async {
            loop {
                tokio::select! {
                    Some(change) = members.next() => match change {
                        Change::Joined(zero) if zero.name == "0" => {
                            let id = UniqueId::from_bytes(&zero.address)?;
                            attempt = Some(Box::pin(TcpBootstrap::join_for(id, rank, size, left(), options.deadline)));
                        }
                        Change::Left(zero) if zero.name == "0" => attempt = None,
                        _ => {}
                    },
                    joined = async {
                        match &mut attempt {
                            Some(attempt) => attempt.await,
                            None => std::future::pending().await,
                        }
                    } => return joined,
                }
            }
        };
        // The attempt's own deadline is this one, and it says more: it comes a little later.
        let bootstrap = timeout_at(deadline + Duration::from_secs(5), joining)
            .await
            .map_err(|_| {
                Error::new(
                    ErrorKind::DeadlineExceeded,
                    "rank 0 did not come to etcd in time",
                )
            })??;
        Ok(EtcdBootstrap {
            bootstrap,
            membership,
        })
    }
}

#[async_trait]
impl Bootstrap for EtcdBootstrap {
    fn rank(&self) -> usize {
        self.bootstrap.rank()
    }
    fn size(&self) -> usize {
        self.bootstrap.size()
    }
    fn deadline(&self) -> Duration {
        self.bootstrap.deadline()
    }
    async fn send_until(&self, to: usize, tag: u64, bytes: Bytes, deadline: Instant) -> Result<()> {
        self.bootstrap.send_until(to, tag, bytes, deadline).await
    }
    async fn receive_until(&self, from: usize, tag: u64, deadline: Instant) -> Result<Bytes> {
        self.bootstrap.receive_until(from, tag, deadline).await
    }
    async fn all_gather_until(&self, bytes: Bytes, deadline: Instant) -> Result<Vec<Bytes>> {
        self.bootstrap.all_gather_until(bytes, deadline).await
    }
    async fn leave(&self) {
        self.bootstrap.leave().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_taken_are_not_tried() {
        let taken = ["0", "1", "01", "3", "x"].map(|name| (name.to_owned(), ()));
        let taken = BTreeMap::from(taken);
        assert_eq!(free(6, &taken).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!(free(2, &taken).count(), 0);
    }
}
