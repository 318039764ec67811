//! Two ends, a thread each, that sleep for every message of the other: one wake-up that is lost, and both sleep for good.
//!
//! `ASLEEP_MESSAGES` there and back for each way to wait (20,000 unless told; a million by hand).

use std::{sync::mpsc, thread, time::Duration};

use wharf::{Context, Progress, Tag, Worker};

use crate::support::watchdog;

const TAG: Tag = Tag(1);

fn count() -> u64 {
    let told = std::env::var("ASLEEP_MESSAGES");
    told.map_or(20_000, |told| told.parse().expect("a number"))
}

/// One end; the first sends first. The address goes from one thread to the other.
fn end(
    transport: &str,
    progress: Progress,
    to: Option<mpsc::Receiver<String>>,
    say: &mpsc::Sender<String>,
) {
    let count = count();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // A wake-up that is late takes less than a millisecond, on a machine that does something else as well.
    let limit = Duration::from_secs(60) + Duration::from_millis(count);
    runtime.block_on(watchdog(limit, async {
        let context = Context::builder().transports(transport).expect("known");
        let context = context.progress(progress).build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let endpoint = match &to {
            Some(address) => worker.connect(address.recv().expect("an address")).await,
            None => {
                let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
                say.send(listener.local_addr().to_string())
                    .expect("somebody who dials");
                listener
                    .accept()
                    .await
                    .expect("a connection")
                    .accept()
                    .await
            }
        };
        let endpoint = endpoint.expect("connected");
        let mut buffer = vec![0; 8];
        for number in 0..count {
            let bytes = number.to_le_bytes();
            if to.is_some() {
                endpoint.tag_send(TAG, bytes.to_vec()).await.expect("sent");
            }
            let received = worker.tag_recv(TAG, buffer).await;
            buffer = received.expect("a message").buffer;
            assert_eq!(buffer, bytes);
            if to.is_none() {
                endpoint.tag_send(TAG, bytes.to_vec()).await.expect("sent");
            }
        }
        endpoint.close().await.expect("closed");
    }));
}

fn there_and_back(transport: &'static str, progress: Progress) {
    let (say, heard) = mpsc::channel();
    let dials = {
        let say = say.clone();
        thread::spawn(move || end(transport, progress, Some(heard), &say))
    };
    end(transport, progress, None, &say);
    dials.join().expect("the other end");
}

#[test]
fn shm_without_a_look() {
    there_and_back("shm", Progress::Spin(Duration::ZERO));
}

#[test]
fn shm_by_events() {
    there_and_back("shm", Progress::EventDriven);
}

#[test]
fn shm_by_threads() {
    there_and_back("shm", Progress::Thread);
}

#[test]
fn tcp_without_a_look() {
    there_and_back("tcp", Progress::Spin(Duration::ZERO));
}
