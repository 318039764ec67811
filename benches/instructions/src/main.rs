//! Does one operation of 8 bytes so many times, both ends in one thread, so that nothing depends on time: the difference of two runs, counted by
//! valgrind, is what the operations cost. `run` does that.
//!
//! ```text
//! wharf-instructions TRANSPORT OPERATION TIMES
//! ```

use std::{hint::black_box, mem::ManuallyDrop, process::ExitCode};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{Access, AmId, Context, Endpoint, Listener, Progress, RemoteRegion, Tag, Worker};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const OPERATIONS: [&str; 10] = [
    "none",
    "tag",
    "tag_posted",
    "am",
    "am_in_place",
    "put",
    "get",
    "fetch_add",
    "stream",
    "connect",
];
const TAG: Tag = Tag(7);
const AM: AmId = AmId(3);
const SIZE: usize = 8;
/// Bytes of a write and a read of a stream.
const STREAMED: usize = 64;

/// Two workers that are connected.
struct Ends {
    here: Endpoint,
    there: Worker,
    listener: Listener,
    /// The other direction, for regions.
    back: Endpoint,
    context: Context,
    worker: Worker,
}

impl Ends {
    async fn new(transport: &str) -> Outcome<Self> {
        let context = Context::builder()
            .transports(transport)?
            .progress(Progress::Adaptive)
            .build()?;
        let (worker, there) = (Worker::new(&context)?, Worker::new(&context)?);
        let listener = there.listen("127.0.0.1:0").await?;
        let address = listener.local_addr();
        let (here, back) = tokio::join!(worker.connect(address), async {
            listener.accept().await?.accept().await
        });
        Ok(Self {
            here: here?,
            there,
            listener,
            back: back?,
            context,
            worker,
        })
    }

    /// Memory of the other end, as this end reaches it.
    async fn remote(&self) -> Outcome<RemoteRegion> {
        let memory = self.context.allocate(4096).await?;
        let access = Access::READ | Access::WRITE;
        // It lives as long as this program.
        let region = ManuallyDrop::new(self.context.expose(memory, access).await?);
        Ok(self.here.import(&region.descriptor()?)?)
    }

    async fn repeat(&mut self, operation: &str, times: usize) -> Outcome<()> {
        let (here, there) = (&self.here, &self.there);
        let message = wharf::Buffer::from(vec![1; SIZE]);
        match operation {
            "none" => {}
            "tag" => {
                let mut buffer = vec![0; SIZE];
                for _ in 0..times {
                    here.tag_send(TAG, &message).await?;
                    buffer = there.tag_recv(TAG, buffer).await?.buffer;
                }
                black_box(buffer);
            }
            "tag_posted" => {
                let mut buffer = vec![0; SIZE];
                for _ in 0..times {
                    let posted = there.tag_recv(TAG, buffer).post();
                    here.tag_send(TAG, &message).await?;
                    buffer = posted.await?.buffer;
                }
                black_box(buffer);
            }
            "am" | "am_in_place" => {
                let mut inbox = there.active_messages(AM).open()?;
                let keeps = operation == "am";
                for _ in 0..times {
                    here.am_send(AM, wharf::Buffer::new(), &message).await?;
                    if keeps {
                        drop(black_box(inbox.recv().await.ok_or("no message")?));
                    } else {
                        let look = inbox.recv_with(|message| message.data()?.read::<SIZE>(0));
                        black_box(look.await.flatten().ok_or("no message")?);
                    }
                }
            }
            "put" => {
                let remote = wharf::RemoteLayout::from(self.remote().await?);
                for _ in 0..times {
                    here.put(&message, &remote).await?;
                }
            }
            "get" => {
                let remote = wharf::RemoteLayout::from(self.remote().await?.slice(..SIZE));
                let mut buffer = vec![0; SIZE];
                for _ in 0..times {
                    buffer = here.get(&remote, buffer).await?;
                }
                black_box(buffer);
            }
            "fetch_add" => {
                let remote = self.remote().await?;
                for _ in 0..times {
                    black_box(remote.fetch_add(0, 1_u64).await?);
                }
            }
            "stream" => {
                let (opened, accepted) =
                    tokio::try_join!(self.here.stream(), self.back.accept_stream())?;
                let (mut from, mut to) = (opened, accepted);
                let mut bytes = [1; STREAMED];
                for _ in 0..times {
                    from.write_all(&bytes).await?;
                    to.read_exact(&mut bytes).await?;
                }
                black_box(bytes);
            }
            "connect" => {
                let address = self.listener.local_addr();
                let mut all = Vec::new();
                for _ in 0..times {
                    all.push(tokio::try_join!(self.worker.connect(address), async {
                        self.listener.accept().await?.accept().await
                    })?);
                }
                black_box(all);
            }
            other => return Err(format!("no operation {other:?} among {OPERATIONS:?}").into()),
        }
        black_box(&self.back);
        Ok(())
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [transport, operation, times] = &words[..] else {
        eprintln!(
            "wharf-instructions TRANSPORT {} TIMES",
            OPERATIONS.join("|")
        );
        return ExitCode::FAILURE;
    };
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| {
            let times = times.parse()?;
            runtime.block_on(async {
                let mut ends = Ends::new(transport).await?;
                ends.repeat(operation, times).await
            })
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error: Box<dyn std::error::Error + Send + Sync> = error;
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
