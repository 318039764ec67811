#![allow(unsafe_code)]
//! Modules of PTX text, and launches of what is in them.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::ffi::{c_char, c_void};

use wharf_emulated_ptx::Grid;

use crate::{
    abi::{In, Out, Status},
    driver::driver,
    gate::exports,
    kernels::{self, Kernel},
    objects::{self, Module},
    stream::Op,
};

exports! {
    ["cuModuleLoadData", 2000, Context]
    fn cuModuleLoadData(module: Out<u64>, image: In<c_char>) |call| {
        let program = kernels::read(&image.text()?)?;
        let handle = objects::module_handle();
        let context = call.context()?.id;
        let read = Module { context, program };
        driver().objects.lock().modules.insert(handle, read);
        module.set(handle)
    }

    ["cuModuleUnload", 2000, Context]
    fn cuModuleUnload(module: u64) |call| {
        let context = call.context()?.id;
        let mut objects = driver().objects.lock();
        if objects.modules.get(&module).is_none_or(|module| module.context != context) {
            return Err(Status::INVALID_HANDLE);
        }
        objects.modules.remove(&module);
        Ok(())
    }

    ["cuModuleGetFunction", 2000, Context]
    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: In<c_char>) |_call| {
        let found = driver().objects.lock().modules.get(&module).cloned();
        let program = found.ok_or(Status::INVALID_HANDLE)?.program;
        let index = program.entry(&name.text()?).ok_or(Status::NOT_FOUND)?;
        function.set(objects::function_handle(module, index))
    }

    ["cuLaunchKernel", 4000, Context]
    fn cuLaunchKernel(
        function: u64, blocks: u32, blocks_y: u32, blocks_z: u32, threads: u32, threads_y: u32,
        threads_z: u32, shared: u32, stream: u64, arguments: In<u64>, extra: *mut c_void,
    ) |call| {
        let (module, index) = objects::function(function).ok_or(Status::INVALID_HANDLE)?;
        let context = call.context()?;
        let found = driver().objects.lock().modules.get(&module).cloned();
        let module = found.filter(|module| module.context == context.id);
        let program = module.ok_or(Status::INVALID_HANDLE)?.program;
        let entry = program.function(index).ok_or(Status::INVALID_HANDLE)?;
        let flat = [blocks_y, blocks_z, threads_y, threads_z] == [1; 4];
        let fits = (1..1 << 31).contains(&blocks) && (1..=1024).contains(&threads);
        if !flat || !fits || shared != 0 || !extra.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let parameters = entry.parameters();
        let mut bytes = Vec::new();
        for (pointer, parameter) in arguments.list(parameters.len())?.into_iter().zip(parameters) {
            bytes.resize(parameter.place, 0);
            bytes.extend(In::<u8>::at(pointer).list(parameter.size)?);
        }
        let grid = Grid { blocks, threads };
        let kernel = Kernel::new(&program, index, &bytes, grid)?;
        let stream = objects::stream(stream, context)?;
        if let Some(status) = call.late {
            stream.push(Op::Break(status))?;
        }
        // What the host has done before is seen.
        driver().devices[context.device].floor.refresh();
        stream.push(Op::Kernel(Box::new(kernel))).map(drop)
    }
}
