#![allow(unsafe_code)]
//! Modules and kernels: those of wharf's device channels, and no others.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::ffi::{c_char, c_void};

use crate::{
    abi::{In, Out, Status},
    driver::driver,
    gate::exports,
    kernels::{self, Kernel, NAMES},
    objects,
    stream::Op,
};

exports! {
    ["cuModuleLoadData", 2000, Context]
    fn cuModuleLoadData(module: Out<u64>, image: In<c_char>) |call| {
        if !kernels::is_known(&image.text()?) {
            return Err(Status::JIT_COMPILER_NOT_FOUND);
        }
        let handle = objects::module_handle();
        let context = call.context()?.id;
        driver().objects.lock().modules.insert(handle, context);
        module.set(handle)
    }

    ["cuModuleUnload", 2000, Context]
    fn cuModuleUnload(module: u64) |call| {
        let context = call.context()?.id;
        let mut objects = driver().objects.lock();
        if objects.modules.get(&module) != Some(&context) {
            return Err(Status::INVALID_HANDLE);
        }
        objects.modules.remove(&module);
        Ok(())
    }

    ["cuModuleGetFunction", 2000, Context]
    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: In<c_char>) |_call| {
        if !driver().objects.lock().modules.contains_key(&module) {
            return Err(Status::INVALID_HANDLE);
        }
        let name = name.text()?;
        let index = NAMES.iter().position(|(known, _)| *known == name);
        function.set(objects::function_handle(module, index.ok_or(Status::NOT_FOUND)?))
    }

    ["cuLaunchKernel", 4000, Context]
    fn cuLaunchKernel(
        function: u64, blocks: u32, blocks_y: u32, blocks_z: u32, threads: u32, threads_y: u32,
        threads_z: u32, shared: u32, stream: u64, arguments: In<u64>, extra: *mut c_void,
    ) |call| {
        let (module, index) = objects::function(function).ok_or(Status::INVALID_HANDLE)?;
        let context = call.context()?;
        if driver().objects.lock().modules.get(&module) != Some(&context.id) {
            return Err(Status::INVALID_HANDLE);
        }
        let flat = [blocks_y, blocks_z, threads_y, threads_z] == [1; 4];
        let fits = (1..1 << 31).contains(&blocks) && (1..=1024).contains(&threads);
        if !flat || !fits || shared != 0 || !extra.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let sizes = NAMES[index].1;
        let mut values = Vec::new();
        for (pointer, size) in arguments.list(sizes.len())?.into_iter().zip(sizes) {
            values.push(match size {
                4 => u64::from(In::<u32>::at(pointer).get()?),
                _ => In::<u64>::at(pointer).get()?,
            });
        }
        let kernel = Kernel::new(index, &values, (blocks, threads))?;
        let stream = objects::stream(stream, context)?;
        if let Some(status) = call.late {
            stream.push(Op::Break(status))?;
        }
        stream.push(Op::Kernel(kernel)).map(drop)
    }
}
