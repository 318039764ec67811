//! What README.md shows under "A look", so that it is compiled.

use wharf::{Buffer, Context, Descriptor, Result, Tag, Worker};

#[rustfmt::skip]
#[expect(dead_code, reason = "nobody is at that address")]
async fn look(bytes: Buffer, buffer: Buffer, descriptor: Descriptor) -> Result<()> {
let context = Context::builder().transports("shm,tcp")?.build()?;
let worker = Worker::new(&context)?;                       // on the current Tokio runtime
let endpoint = worker.connect("10.0.0.2:7471").await?;     // shared memory if it turns out to be this host

endpoint.tag_send(Tag(7), bytes).await?;
let got = worker.tag_recv(Tag(8), context.allocate(4096).await?).await?;

let remote = endpoint.import(&descriptor)?;                // what the other end exposed
endpoint.put(buffer, remote.slice(..1024)).await?;         // visible there when it resolves
    drop(got);
    Ok(())
}
