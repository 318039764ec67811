//! One card, three libraries: Synapse opens it, SCAL says where its pool lies, libhl-thunk exports it.
//!
//! # Safety
//! A borrowed descriptor stays open for as long as the card that is made of it.
#![allow(unsafe_code)]

use std::{fs::File, os::fd::AsRawFd, os::unix::fs::FileExt, time::Duration};

use crate::{
    alone::{child_with, is_child},
    driver::{
        hlthunk::HlThunk,
        scal::{GLOBAL_HBM, Scal},
        synapse::Synapse,
    },
    error::ErrorKind,
    support::{emulated, open_fds, this_test},
};

#[test]
fn a_card_of_synapse_is_exported_and_owned_once() {
    if !is_child() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("text");
        return child_with(this_test!(), &[("EMULATED_HLTHUNK_FOLDER", path)]);
    }
    let thunk = HlThunk::load(Some(&emulated::hlthunk())).expect("loads");
    let synapse = Synapse::load(Some(&emulated::synapse())).expect("loads");
    // As Synapse does.
    emulated::bring(&emulated::scal());
    let scal = Scal::resident(Some(&emulated::scal())).expect("is there");
    let bus_id = "0000:33:00.0".parse().expect("a place");

    // Who has opened it keeps the other from it.
    let owned = thunk.open(&bus_id, Duration::ZERO).expect("a card");
    synapse.acquire("0000:33:00.0").expect_err("is taken");
    let other = synapse.acquire("0000:44:00.0").expect("the other card");
    drop((owned, other));
    let device = synapse.acquire("0000:33:00.0").expect("a device");
    thunk.open(&bus_id, Duration::ZERO).expect_err("is taken");

    let info = device.info().expect("an answer");
    let handle = scal.attach(info.fd).expect("is set up");
    let pool = handle.pool(GLOBAL_HBM).expect("the pool");
    let fds = open_fds();
    // SAFETY: the device outlives the card.
    let card = unsafe { thunk.borrow(info.fd) }.expect("a card");
    assert_eq!(card.bus_id().as_str(), "0000:33:00.0");
    let dmabuf = card
        .export(
            pool.allocated_base,
            pool.base - pool.allocated_base,
            pool.total,
        )
        .expect("a dma-buf");
    let text = emulated::control_of(
        &emulated::hlthunk(),
        &format!("dmabuf {}", dmabuf.as_raw_fd()),
    );
    assert!(text.contains("0000:33:00.0"), "{text}");
    // No bytes come from it.
    let copy = File::from(dmabuf.try_clone().expect("a duplicate"));
    copy.read_at(&mut [0], 0)
        .expect_err("the host cannot read it");
    drop(copy);
    // The mapping's own address, whole pages, within it.
    for (base, offset, len) in [
        (pool.base, 0, pool.total),
        (
            pool.allocated_base,
            0,
            pool.base - pool.allocated_base + pool.total + 4096,
        ),
        (pool.allocated_base, 4096, 100),
        (pool.allocated_base, 0, 0),
        (pool.allocated_base, u64::MAX - 4095, 4096),
    ] {
        let error = card.export(base, offset, len).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // Its work is Synapse's to do.
    card.allocate(4096).expect_err("is not ours");
    drop(card);
    assert_eq!(
        open_fds(),
        fds + 1,
        "the descriptor was lent, the dma-buf is ours"
    );

    // The dma-buf keeps the card.
    drop(device);
    handle.pool(GLOBAL_HBM).expect_err("Synapse has let go");
    thunk
        .open(&bus_id, Duration::ZERO)
        .expect_err("a dma-buf is open");
    synapse
        .acquire("0000:33:00.0")
        .expect_err("a dma-buf is open");
    drop(dmabuf);
    synapse.acquire("0000:33:00.0").expect("is free");
    thunk.open(&bus_id, Duration::ZERO).expect("is free");
}
