//! One transport driven by hand, without a worker: memory is exposed, its key packed, and a peer puts and gets by that key, progressed by the program itself.
//! What UCT is beside UCP. Most programs want an [`Endpoint`](crate::Endpoint) instead, which chooses among transports, and does the rest.
//!
//! ```
//! # async fn run() -> wharf::Result<()> {
//! use wharf::{Access, Context, transport::{Role, by_hand::{Driver, RemoteKey}, channel::Channel}};
//!
//! let context = Context::builder().transports("tcp")?.build()?;
//! let transport = context.transport("tcp")?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
//! let address = listener.local_addr().expect("an address");
//!
//! // Two ends in one program; two processes look the same.
//! let (mut here, mut there) = (Driver::open(&transport)?, Driver::open(&transport)?);
//! let (near, far) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
//! let (near, (far, _)) = (near.expect("connected"), far.expect("accepted"));
//! let (to_there, _) = tokio::try_join!(
//!     here.connect(Channel::tcp(near), Role::Client),
//!     there.connect(Channel::tcp(far), Role::Server),
//! )?;
//!
//! let region = there.expose(vec![0; 4096], Access::READ | Access::WRITE).await?;
//! let packed = there.pack(&region).to_bytes(); // goes to the other end, however the program likes
//! let key = RemoteKey::from_bytes(&packed)?;
//! let work = async {
//!     let put = here.put_short(to_there, b"hello", &key, 8)?;
//!     here.wait(put).await?;
//!     let get = here.get_zcopy(to_there, vec![0; 5], &key, 8).await?;
//!     here.wait(get).await
//! };
//! let serve = async {
//!     loop {
//!         there.turn().await?;
//!     }
//! };
//! let got = tokio::select! {
//!     got = work => got?,
//!     error = serve => return error,
//! };
//! assert_eq!(got.as_slice().expect("the host's"), b"hello");
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! | in UCT | here |
//! |---|---|
//! | `uct_component_query`, `uct_md_open` | [`Context::transport`](crate::Context::transport) |
//! | `uct_iface_open`, `uct_worker_create` | [`Driver::open`] |
//! | `uct_ep_create`, `uct_ep_connect_to_ep` | [`Driver::connect`], over a [`Channel`](super::channel::Channel) of the program's |
//! | `uct_md_mem_reg`, `uct_md_mkey_pack` | [`Driver::expose`], [`Driver::pack`] |
//! | `uct_rkey_unpack` | [`RemoteKey::from_bytes`]; [`Driver::open_key`], which maps the memory where that can be |
//! | `uct_ep_put_short`, `uct_ep_put_zcopy`, `uct_ep_get_zcopy` | [`Driver::put_short`], [`Driver::put_zcopy`], [`Driver::get_zcopy`] |
//! | `uct_worker_progress`, a completion's callback | [`Driver::progress`], [`Driver::test`]; or [`Driver::turn`], [`Driver::wait`], which sleep |
//!
//! # How the bytes go
//! [`Driver::way`] says which of these it is for a key:
//!
//! * network devices, where the transport has them and the memory is registered with some that lead to it (`rc_verbs`): the peer's processor takes no part. What a
//!   device refuses, an access by a key that was taken back among it, costs the queue pair that it went by, and some devices the connection ([`Driver::failure`]);
//! * loads and stores, or one copy in memory that both have mapped (`shm`, memory of [`Context::allocate`](crate::Context::allocate) whose key was opened);
//! * one copy by the kernel (`shm`, any memory, where [`Driver::by_kernel`] and the system allow it at both ends);
//! * messages, over every transport that carries them, one of your own too: the peer's driver reads or writes the memory that it has exposed, so somebody has to
//!   call [`Driver::progress`] or [`Driver::turn`] there. Nothing that a peer says of keys, ranges or lengths is trusted.
//!
//! There is no order among operations, and a put is over when its bytes are visible at the target.

// Comes in: a transport of the contract, whatever it is, and a channel. Goes out: puts and gets. Uses `memory` (exposed regions), `cma`, `Pair`. Not used by
// the worker, which says more over its links than this does.
//
// | file | holds |
// |---|---|
// | `driver` | what the program calls |
// | `brought` | what operations give back |
// | `key` | the packed key |
// | `meet` | what two drivers say before their link is made |
// | `wire` | what they say over it |
// | `state` | operations and endpoints, and what is made of what arrives |
// | `send` | what leaves |
// | `guests` | peers that reach exposed memory by themselves |

mod brought;
mod driver;
mod guests;
mod key;
mod meet;
mod send;
mod state;
#[cfg(all(test, not(wharf_loom)))]
mod tests;
mod wire;

pub use driver::{Brought, Driver, Posted};
pub use key::RemoteKey;

/// Gives bytes to the decoders of what drivers say, and of keys.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(key) = RemoteKey::from_bytes(bytes) {
        assert_eq!(RemoteKey::from_bytes(&key.to_bytes()).ok(), Some(key));
    }
    if let Ok(said) = meet::read(bytes) {
        let again = meet::hello(&said.0, said.1, &said.2);
        assert_eq!(meet::read(&again).ok(), Some(said));
    }
    for words in [12, wire::PUT_PREFIX, 28] {
        if let Ok((place, rest)) = wire::Place::read(bytes, words) {
            assert_eq!(place.get()[..words], bytes[..words]);
            assert_eq!(rest.len() + words, bytes.len());
        }
    }
}
