//! Which public types may cross threads. A type that stops being `Send`, `Sync` or `Unpin` breaks programs that rely on it.

use wharf::{
    Access, Context, ContextBuilder, EndpointId, Error, ErrorKind, Mask, MemoryType, OpError,
    Operation, Progress, Tag, WorkerId,
    transport::{
        Connected, Connector, Interface, Link, LinkAttributes, Opened, Place, RawSlice, Transport,
    },
};

/// Demands auto traits of types. It runs at compile time; a line that does not hold does not compile.
macro_rules! all {
    ($($type:ty: $first:tt $(+ $bound:tt)*;)+) => {
        #[test]
        fn auto_traits() {
            $({
                fn demand<T: $first $(+ $bound)* + ?Sized>() {}
                demand::<$type>();
            })+
        }
    };
}

all! {
    Context: Send + Sync + Unpin + Clone + 'static;
    ContextBuilder: Send + Sync + Unpin + 'static;
    Progress: Send + Sync + Unpin + Copy + 'static;

    Error: Send + Sync + Unpin + 'static;
    ErrorKind: Send + Sync + Unpin + Copy + 'static;
    Operation: Send + Sync + Unpin + Copy + 'static;
    OpError<Vec<u8>>: Send + Sync + Unpin + 'static;
    Result<(), OpError<Vec<u8>>>: Send + Sync;

    Access: Send + Sync + Unpin + Copy + 'static;
    EndpointId: Send + Sync + Unpin + Copy + 'static;
    Mask: Send + Sync + Unpin + Copy + 'static;
    MemoryType: Send + Sync + Unpin + Copy + 'static;
    Tag: Send + Sync + Unpin + Copy + 'static;
    WorkerId: Send + Sync + Unpin + Copy + 'static;

    dyn Transport: Send + Sync;
    dyn Connector: Send + Sync;
    dyn Interface: Send;
    dyn Link: Send;
    Opened: Send + Unpin + 'static;
    Connected: Send + Unpin + 'static;
    LinkAttributes: Send + Sync + Copy + 'static;
    RawSlice: Send + Unpin + Copy + 'static;
    Place: Unpin + 'static;
}
