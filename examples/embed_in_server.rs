//! A wharf worker beside an ordinary Tokio TCP server, on one runtime.
//!
//! `cargo run --release --example embed_in_server` starts this program again as a store, which keeps records in memory that it exposes. The server
//! here takes lines by TCP, as any client speaks them, fetches records by wharf without the store's doing (`get`), asks it by message (tag) for what
//! only it can tell, and answers by TCP. Many clients at once check every answer.
//!
//! ```text
//! clients ──TCP──▶ server ──get──▶ the store's memory
//!                     └────tag───▶ the store
//! ```
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    process::Command,
    task::JoinSet,
};
use wharf::{Access, Context, Descriptor, Endpoint, RemoteRegion, Tag, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Where the store's memory is: its descriptor.
const DESCRIPTOR: Tag = Tag(1);
/// A question to the store: its number, and the number of a record. The answer comes under [`ANSWER`] and the question's number.
const QUESTION: Tag = Tag(2);
const ANSWER: u64 = 1 << 32;
/// No more questions.
const END: Tag = Tag(3);

const RECORDS: u32 = 1000;
const RECORD: usize = 4096;
const CLIENTS: u32 = 16;
const REQUESTS: u32 = 200;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, transport, address] = arguments.as_slice()
        && flag == "--store"
    {
        return store(transport, address).await;
    }
    for transport in ["shm", "tcp"] {
        let done = serve(transport, async |address| {
            let status = Command::new(std::env::current_exe()?)
                .args(["--store", transport, &address])
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .status()
                .await?;
            if status.success() {
                Ok(())
            } else {
                Err(format!("the store: {status}").into())
            }
        })
        .await?;
        println!("{transport:<4} {done}");
    }
    Ok(())
}

/// The server with its clients. `start_store` runs a store to its end, told where to connect.
pub(crate) async fn serve(
    transport: &str,
    start_store: impl AsyncFnOnce(String) -> Outcome<()>,
) -> Outcome<String> {
    // The worker joins the runtime that is there. It needs no thread, and nothing happens while nothing is asked.
    let context = Context::builder().transports(transport)?.build()?;
    let worker = Worker::new(&context)?;
    let listener = worker.listen("127.0.0.1:0").await?;
    let store = start_store(listener.local_addr().to_string());
    let serving = async {
        let endpoint = listener.accept().await?.await?;
        let received = worker.tag_recv(DESCRIPTOR, vec![0; 4096]).await?;
        let records =
            endpoint.import(&Descriptor::from_bytes(&received.buffer[..received.len])?)?;
        let server = Server {
            worker: worker.clone(),
            endpoint: endpoint.clone(),
            records,
        };
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let address = tcp.local_addr()?;
        let accepting = tokio::spawn(server.run(tcp));
        let start = Instant::now();
        try_join_all((0..CLIENTS).map(|client| be_client(address, client))).await?;
        let took = start.elapsed();
        accepting.abort();
        endpoint.tag_send(END, Vec::new()).await?;
        Outcome::Ok(took)
    };
    // A store that fails ends all of it.
    let (took, ()) = tokio::try_join!(serving, store)?;
    worker.shutdown(Duration::from_secs(5)).await?;
    let requests = CLIENTS * REQUESTS;
    Ok(format!(
        "ok  {CLIENTS} TCP clients, {requests} requests, every answer checked, {:.0} requests/s",
        f64::from(requests) / took.as_secs_f64()
    ))
}

// --- The TCP server.

#[derive(Clone)]
struct Server {
    worker: Worker,
    endpoint: Endpoint,
    records: RemoteRegion,
}

impl Server {
    async fn run(self, tcp: TcpListener) -> Outcome<()> {
        let mut clients = JoinSet::new();
        loop {
            let (stream, _) = tcp.accept().await?;
            stream.set_nodelay(true)?;
            let server = self.clone();
            // A client that breaks off is no concern of the others.
            clients.spawn(async move { drop(server.attend(stream).await) });
        }
    }

    /// Lines: `get RECORD` is answered with its bytes, `digest RECORD` with its digest, anything else with an error.
    async fn attend(&self, stream: TcpStream) -> Outcome<()> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await? {
            let answer = match self.answer(&line).await {
                Ok(answer) => answer,
                Err(error) => format!("error: {error}").into_bytes(),
            };
            write
                .write_all(format!("{}\n", answer.len()).as_bytes())
                .await?;
            write.write_all(&answer).await?;
        }
        Ok(())
    }

    async fn answer(&self, line: &str) -> Outcome<Vec<u8>> {
        let (verb, record) = line.split_once(' ').ok_or("a line is: VERB RECORD")?;
        let record: u32 = record.parse()?;
        match verb {
            // One-sided: the store's process does nothing for it.
            "get" if record < RECORDS => {
                let start = record as usize * RECORD;
                let there = self.records.slice(start..start + RECORD);
                Ok(self.endpoint.get(there, vec![0; RECORD]).await?)
            }
            "digest" if record < RECORDS => self.ask(record).await,
            _ => Err("no such verb or record".into()),
        }
    }

    /// Asks the store. Answers find their way by their tags, so many may be under way.
    async fn ask(&self, record: u32) -> Outcome<Vec<u8>> {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let answer = Tag(ANSWER | u64::from(number));
        let question = [number.to_le_bytes(), record.to_le_bytes()].concat();
        self.endpoint.tag_send(QUESTION, question).await?;
        let received = self
            .worker
            .tag_recv(answer, vec![0; 32])
            .deadline(Duration::from_secs(10))
            .await?;
        Ok(received.buffer[..received.len].to_vec())
    }
}

// --- The store.

/// Keeps the records, exposes them, and answers questions until it is told to end.
pub(crate) async fn store(transport: &str, address: &str) -> Outcome<()> {
    let context = Context::builder().transports(transport)?.build()?;
    let worker = Worker::new(&context)?;
    let endpoint = worker.connect(address).await?;
    let mut memory = context.allocate(RECORDS as usize * RECORD).await?;
    for (number, bytes) in (0..RECORDS).zip(memory.chunks_exact_mut(RECORD)) {
        bytes.copy_from_slice(&record(number));
    }
    let region = context.expose(memory, Access::READ).await?;
    endpoint
        .tag_send(DESCRIPTOR, region.descriptor()?.to_bytes())
        .await?;
    loop {
        let question = tokio::select! {
            question = worker.tag_recv(QUESTION, vec![0; 8]) => question?,
            _ = worker.tag_recv(END, Vec::new()) => break,
            // The server is gone.
            _ = endpoint.closed() => break,
        };
        let (number, wanted) = match question.buffer[..question.len] {
            [a, b, c, d, e, f, g, h] => (
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            ),
            _ => return Err("a question is eight bytes".into()),
        };
        let mut bytes = vec![0; RECORD];
        region.read_at(wanted as usize * RECORD, &mut bytes)?;
        let answer = Tag(ANSWER | u64::from(number));
        endpoint
            .tag_send(answer, Sha256::digest(&bytes).to_vec())
            .await?;
    }
    endpoint.close().await?;
    worker.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// What a record holds.
fn record(number: u32) -> Vec<u8> {
    let line = format!("record {number} ");
    line.bytes().cycle().take(RECORD).collect()
}

// --- The clients, which know nothing of wharf.

async fn be_client(address: std::net::SocketAddr, client: u32) -> Outcome<()> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    for request in 0..REQUESTS {
        let number = (client * 7919 + request * 104_729) % RECORDS;
        let (line, wanted) = match request % 50 {
            0 => (
                format!("get {RECORDS}"),
                b"error: no such verb or record".to_vec(),
            ),
            question if question % 4 == 0 => (
                format!("digest {number}"),
                Sha256::digest(record(number)).to_vec(),
            ),
            _ => (format!("get {number}"), record(number)),
        };
        write.write_all(format!("{line}\n").as_bytes()).await?;
        if answer(&mut read).await? != wanted {
            return Err(format!("client {client}: a wrong answer to {line:?}").into());
        }
    }
    Ok(())
}

async fn answer(read: &mut BufReader<OwnedReadHalf>) -> Outcome<Vec<u8>> {
    let mut length = String::new();
    read.read_line(&mut length).await?;
    let mut bytes = vec![0; length.trim().parse()?];
    read.read_exact(&mut bytes).await?;
    Ok(bytes)
}
