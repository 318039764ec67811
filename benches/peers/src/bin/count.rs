//! Messages and puts over `rc_verbs` in one process, for a tool that counts instructions: no clock is read.
//!
//! ```sh
//! WHARF_LIBIBVERBS=target/debug/deps/libwharf_emulated_verbs.so valgrind --tool=callgrind count tag 64 12000
//! ```
//! The difference of two runs, by the difference of their numbers, is what one costs: the call, the request, the completion at both ends. Lines of
//! the emulated library's object are to be taken off. `benches/README.md` has the figures.

use wharf::{Access, AmId, Buffer, Context, Descriptor, Progress, Tag, Worker};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [verb, size, number] = &words[..] else {
        return Err("count tag|am|put|fetch_add SIZE NUMBER".into());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(count(verb, size.parse()?, number.parse()?))
}

async fn count(verb: &str, size: usize, number: usize) -> Outcome<()> {
    let context = Context::builder()
        .transports("rc_verbs")?
        .progress(Progress::Busy)
        .build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = there.listen("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let (dialled, accepted) = tokio::join!(here.connect(address), async {
        listener.accept().await?.accept().await
    });
    let (endpoint, other) = (dialled?, accepted?);
    let message = Buffer::from(vec![1; size]);
    match verb {
        "tag" => {
            let mut room = vec![0; size];
            for _ in 0..number {
                endpoint.tag_send(Tag(1), message.clone()).await?;
                room = there.tag_recv(Tag(1), room).await?.buffer;
            }
        }
        "am" => {
            let mut inbox = there.active_messages(AmId(1)).open()?;
            for _ in 0..number {
                let send = endpoint.am_send(AmId(1), Buffer::new(), message.clone());
                send.await?;
                drop(inbox.recv().await.ok_or("no message")?);
            }
        }
        "put" => {
            let region = context.expose(vec![0; size], Access::WRITE).await?;
            let bytes = region.descriptor()?.to_bytes();
            let remote = endpoint.import(&Descriptor::from_bytes(&bytes)?)?;
            for _ in 0..number {
                endpoint.put(message.clone(), remote.clone()).await?;
            }
        }
        "fetch_add" => {
            let region = context.expose(vec![0; 8], Access::DEVICE_ATOMIC).await?;
            let bytes = region.descriptor()?.to_bytes();
            let remote = endpoint.import(&Descriptor::from_bytes(&bytes)?)?;
            for _ in 0..number {
                remote.fetch_add(0, 1_u64).await?;
            }
        }
        _ => return Err("count tag|am|put|fetch_add SIZE NUMBER".into()),
    }
    drop(other);
    Ok(())
}
