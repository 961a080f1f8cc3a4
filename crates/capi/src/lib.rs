//! The C interface of online profiling (`include/memgauge.h`, `man/memgauge.3`).
//!
//! Every function catches panics, so that none crosses into C. A `NULL` pointer to an object is an
//! error, not a crash. Numbers and layouts are those of the header; `tests/examples.rs` compares
//! them.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use memgauge_emulate::sampled::{SampledOptions, SampledProgram};
use memgauge_online::{
    Clean, CommandEnd, Error, ErrorKind, Latency, Profiler, Reader, Region, RegionId, Sample,
    Settings, Sharing, Source, Statistics, ThreadState, WhenFull,
};

mod layout;

use layout::{CSample, CSettings, CStatistics};

/// A profiler.
pub struct CProfiler {
    profiler: Profiler,
    /// Empty if regions are not recorded.
    marks_path: CString,
    creator_pid: u32,
}

/// A reader. Concurrent calls wait for each other.
pub struct CReader {
    inner: Mutex<BufferedReader>,
    creator_pid: u32,
}

struct BufferedReader {
    reader: Reader,
    /// Reused, to avoid an allocation per call.
    samples: Vec<Sample>,
}

impl CReader {
    fn lock(&self) -> MutexGuard<'_, BufferedReader> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }
}

const BAD_ARGUMENT: c_int = -1;
const MISSING: c_int = -2;
const REFUSED: c_int = -3;
const SYSTEM: c_int = -4;
const PANICKED: c_int = -5;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn set_message(message: &str) {
    let text: Vec<u8> = message.bytes().filter(|b| *b != 0).collect();
    MESSAGE.with(|m| *m.borrow_mut() = CString::new(text).unwrap_or_default());
}

fn code(error: &Error) -> c_int {
    match error.kind() {
        ErrorKind::Usage | ErrorKind::BadInput => BAD_ARGUMENT,
        ErrorKind::Missing => MISSING,
        ErrorKind::Refused | ErrorKind::NoSuchTask => REFUSED,
        _ => SYSTEM,
    }
}

fn null_argument(what: &str) -> Error {
    Error::usage(format!("failed to call memgauge: {what} is NULL"))
}

/// Runs the body of a function and converts an error or panic to a code and a message.
fn catch_errors<T: Into<i64>>(call: impl FnOnce() -> Result<T, Error>) -> i64 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value.into(),
        Ok(Err(error)) => {
            set_message(&error.in_full());
            code(&error).into()
        }
        Err(_) => {
            set_message("failed inside memgauge: a thread panicked; please report it");
            PANICKED.into()
        }
    }
}

fn catch_errors_as_int(call: impl FnOnce() -> Result<(), Error>) -> c_int {
    catch_errors(|| call().map(|()| 0)) as c_int
}

/// # Safety
/// `pointer` is NULL or an object that this library created and that was not freed.
unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| null_argument(what))
}

/// An object that only the process that created it may use. In a forked child, the threads that
/// serve the object are missing, its locks keep their state, and its descriptors are shared with
/// the parent.
trait CreatedObject {
    const WHAT: &str;
    fn creator_pid(&self) -> u32;
}

impl CreatedObject for CProfiler {
    const WHAT: &str = "profiler";
    fn creator_pid(&self) -> u32 {
        self.creator_pid
    }
}

impl CreatedObject for CReader {
    const WHAT: &str = "reader";
    fn creator_pid(&self) -> u32 {
        self.creator_pid
    }
}

/// # Safety
/// `pointer` is NULL or a profiler or reader that was not freed.
unsafe fn live_object<'a, T: CreatedObject>(pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: as the caller promises.
    let object = unsafe { object(pointer, T::WHAT) }?;
    if object.creator_pid() != std::process::id() {
        return Err(Error::usage(format!(
            "failed to use a {0}: it was created by process {1}, and this process was forked \
             later; create another one",
            T::WHAT,
            object.creator_pid()
        )));
    }
    Ok(object)
}

/// Frees an object. In a forked child, only forgets it.
///
/// # Safety
/// `pointer` is NULL or a profiler or reader that is not used afterwards.
unsafe fn free<T: CreatedObject>(pointer: *mut T) {
    // SAFETY: as the caller promises.
    if unsafe { live_object(pointer) }.is_ok() {
        // SAFETY: made by `Box::into_raw`, and freed once.
        let object = unsafe { Box::from_raw(pointer) };
        let _ = catch_errors_as_int(|| {
            drop(object);
            Ok(())
        });
    }
}

/// # Safety
/// `into` is NULL or has room for a value.
unsafe fn put<T>(into: *mut T, value: T, what: &str) -> Result<(), Error> {
    if into.is_null() {
        return Err(null_argument(what));
    }
    // SAFETY: not NULL, and as the caller promises.
    unsafe { into.write(value) };
    Ok(())
}

/// Returns the reason why the last call in this thread failed. Valid until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn memgauge_error() -> *const c_char {
    MESSAGE.with(|m| m.borrow().as_ptr())
}

/// # Safety
/// `given` is NULL or a structure whose `size` is its size.
unsafe fn settings(given: *const CSettings, program: bool) -> Result<Settings, Error> {
    // SAFETY: as the caller promises.
    let given = unsafe { object(given, "settings") }?;
    if given.size != size_of::<CSettings>() {
        return Err(Error::usage(format!(
            "failed to read settings of `{}` bytes: this library expects {}; call memgauge_settings_init",
            given.size,
            size_of::<CSettings>()
        )));
    }
    // SAFETY: the header requires a NUL-terminated string.
    let source = match (program, unsafe { text_at(given.event) }?) {
        (true, _) => Source::Program,
        (false, None) => Source::Clock,
        (false, Some(event)) => Source::Pmu(event),
    };
    let mut settings = Settings::new(source);
    settings.period = (given.period > 0).then_some(given.period);
    settings.kernel = flag("kernel", given.kernel)?;
    settings.physical = flag("physical", given.physical)?;
    settings.roi = flag("regions", given.regions)?;
    settings.overhead = (given.overhead != 0.0).then_some(given.overhead);
    settings.phases = flag("phases", given.phases)?;
    settings.buffer = usize::try_from(given.buffer).unwrap_or(usize::MAX);
    settings.when_full = match given.when_full {
        0 => WhenFull::OverwriteOldest,
        1 => WhenFull::RefuseNewest,
        other => return Err(invalid_value("when_full", other)),
    };
    settings.latency = match given.latency_ms {
        10 => Latency::TenMilliseconds,
        1 => Latency::OneMillisecond,
        other => return Err(invalid_value("latency_ms", other)),
    };
    Ok(settings)
}

fn text(given: &CStr) -> Result<String, Error> {
    let text = given.to_str().map(str::to_owned);
    text.map_err(|_| Error::usage("failed to read the name of an event: it is not valid UTF-8"))
}

/// # Safety
/// `given` is NULL or a NUL-terminated string.
unsafe fn text_at(given: *const c_char) -> Result<Option<String>, Error> {
    match given.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => text(unsafe { CStr::from_ptr(given) }).map(Some),
    }
}

fn into_raw(profiler: Profiler) -> *mut CProfiler {
    let file = profiler.marks_file().unwrap_or_default();
    let file = CString::new(file.into_os_string().into_encoded_bytes()).unwrap_or_default();
    Box::into_raw(Box::new(CProfiler {
        profiler,
        marks_path: file,
        creator_pid: std::process::id(),
    }))
}

fn invalid_value(what: &str, value: c_int) -> Error {
    Error::usage(format!(
        "failed to set {what} `{value}`: invalid value; see memgauge.h"
    ))
}

fn flag(what: &str, given: c_int) -> Result<bool, Error> {
    match given {
        0 | 1 => Ok(given == 1),
        other => Err(invalid_value(what, other)),
    }
}

fn sharing(given: c_int) -> Result<Sharing, Error> {
    match given {
        0 => Ok(Sharing::Each),
        1 => Ok(Sharing::Queue),
        other => Err(invalid_value("sharing", other)),
    }
}

/// Fills in the default settings: source clock.
///
/// # Safety
/// `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_settings_init(into: *mut CSettings) -> c_int {
    // SAFETY: as the caller promises.
    catch_errors_as_int(|| unsafe { put(into, CSettings::new(), "settings") })
}

/// Creates a profiler.
///
/// # Safety
/// `given` is NULL or was filled in; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_new(
    given: *const CSettings,
    into: *mut *mut CProfiler,
) -> c_int {
    catch_errors_as_int(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "profiler") }?;
        // SAFETY: as the caller promises.
        let profiler = Profiler::new(unsafe { settings(given, false) }?)?;
        // SAFETY: not NULL, as above.
        unsafe { put(into, into_raw(profiler), "profiler") }
    })
}

/// Starts a program on the modelled machine and samples it.
///
/// # Safety
/// As `memgauge_profiler_new`. `argv` is NULL or a NULL-terminated array of NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_run(
    given: *const CSettings,
    argv: *const *const c_char,
    into: *mut *mut CProfiler,
) -> c_int {
    catch_errors_as_int(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "profiler") }?;
        // SAFETY: as the caller promises.
        let settings = unsafe { settings(given, true) }?;
        // SAFETY: as the caller promises; it is not NULL, or the line above has failed.
        let event = unsafe { text_at((*given).event) }?;
        // SAFETY: as the caller promises.
        let command = unsafe { words(argv) }?;
        let options = SampledOptions::of(&command, event.as_deref().unwrap_or("llc.miss"))?;
        let program = SampledProgram::start(&options)?;
        let profiler = Profiler::for_program(settings, Box::new(program))?;
        // SAFETY: not NULL, as above.
        unsafe { put(into, into_raw(profiler), "profiler") }
    })
}

/// # Safety
/// `argv` is NULL or a NULL-terminated array of NUL-terminated strings.
unsafe fn words(argv: *const *const c_char) -> Result<Vec<String>, Error> {
    // SAFETY: as the caller promises.
    unsafe { object(argv, "argv") }?;
    let mut words = Vec::new();
    loop {
        // SAFETY: no earlier element was NULL, so this one exists.
        let word = unsafe { *argv.add(words.len()) };
        // SAFETY: as the caller promises.
        match unsafe { text_at(word) }? {
            Some(word) => words.push(word),
            None => return Ok(words),
        }
    }
}

/// Returns the file to which programs write their marks.
///
/// # Safety
/// `profiler` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_marks_file(profiler: *const CProfiler) -> *const c_char {
    // SAFETY: as the caller promises.
    match unsafe { live_object(profiler) } {
        Ok(profiler) if !profiler.marks_path.is_empty() => profiler.marks_path.as_ptr(),
        Ok(_) => std::ptr::null(),
        Err(e) => {
            set_message(&e.in_full());
            std::ptr::null()
        }
    }
}

fn find_region(profiler: &Profiler, region: u32) -> Result<Region, Error> {
    let id = u16::try_from(region).map(RegionId);
    let found = id.ok().and_then(|id| profiler.region(id));
    found.ok_or_else(|| {
        Error::usage(format!(
            "failed to find region `{region}`: no sample was in it"
        ))
    })
}

/// Writes the name of a region.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_region_name(
    profiler: *const CProfiler,
    region: u32,
    into: *mut c_char,
    room: usize,
) -> i64 {
    catch_errors(|| {
        // SAFETY: as the caller promises.
        let profiler = &unsafe { live_object(profiler) }?.profiler;
        let name = find_region(profiler, region)?.name;
        // SAFETY: as the caller promises.
        unsafe { write_text(&name, into, room) }
    })
}

/// Writes as much of a text as fits, and a NUL. Returns the length of the whole text.
///
/// # Safety
/// `into` is NULL or has `room` bytes.
unsafe fn write_text(text: &str, into: *mut c_char, room: usize) -> Result<i64, Error> {
    if into.is_null() && room > 0 {
        return Err(null_argument("room for a text"));
    }
    let written = text.bytes().take(room.saturating_sub(1)).chain([0]);
    for (at, byte) in written.take(room).enumerate() {
        // SAFETY: `at` is below `room`, so `into` is not NULL.
        unsafe { into.add(at).write(byte as c_char) };
    }
    Ok(text.len() as i64)
}

/// Writes settings that had to be changed or dropped, and problems.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_notes(
    profiler: *const CProfiler,
    into: *mut c_char,
    room: usize,
) -> i64 {
    catch_errors(|| {
        // SAFETY: as the caller promises.
        let notes = unsafe { live_object(profiler) }?.profiler.notes();
        // SAFETY: as the caller promises.
        unsafe { write_text(&notes.join("\n"), into, room) }
    })
}

/// Frees a profiler. Its readers can still read the samples taken before.
///
/// # Safety
/// `profiler` is NULL or a profiler that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_profiler_free(profiler: *mut CProfiler) {
    // SAFETY: as the caller promises.
    unsafe { free(profiler) };
}

/// Functions on a profiler that return a number.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) => $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `profiler` is NULL or a profiler that was not freed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(profiler: *const CProfiler, $($arg: $kind),*) -> i64 {
            catch_errors(|| {
                // SAFETY: as the caller promises.
                let profiler = &unsafe { live_object(profiler) }?.profiler;
                let call: fn(&Profiler, $($kind),*) -> Result<i64, Error> = $call;
                call(profiler, $($arg),*)
            })
        }
    )*};
}

operations! {
    /// Enables sampling.
    memgauge_on() => |p| { p.on(); Ok(0) };
    /// Disables all sampling.
    memgauge_off() => |p| { p.off(); Ok(0) };
    /// Adds a thread.
    memgauge_add_thread(tid: u32) => |p, tid| p.add_thread(tid).map(|()| 0);
    /// Adds a process. Returns the number of threads added.
    memgauge_add_process(pid: u32) => |p, pid| p.add_process(pid).map(|n| n as i64);
    /// Deletes a thread.
    memgauge_delete_thread(tid: u32) => |p, tid| p.delete_thread(tid).map(|()| 0);
    /// Deletes a process. Returns the number of threads deleted.
    memgauge_delete_process(pid: u32) => |p, pid| p.delete_process(pid).map(|n| n as i64);
    /// Resumes sampling of a thread.
    memgauge_start(tid: u32) => |p, tid| p.start(tid).map(|()| 0);
    /// Stops sampling of a thread.
    memgauge_stop(tid: u32) => |p, tid| p.stop(tid).map(|()| 0);
    /// Changes the period of a thread. Returns the period in force.
    memgauge_set_period(tid: u32, period: u64) =>
        |p, tid, period| p.set_period(tid, period).map(|n| n as i64);
    /// Changes the period of threads added later. Returns the period in force.
    memgauge_set_period_of_new(period: u64) =>
        |p, period| p.set_default_period(period).map(|n| n as i64);
    /// Changes the buffer size of threads added later.
    memgauge_set_buffer_of_new(samples: u64) => |p, samples| {
        p.set_default_buffer(usize::try_from(samples).unwrap_or(usize::MAX)).map(|()| 0)
    };
    /// Waits for the program. Returns its exit code, or 128 plus its signal.
    memgauge_wait() => |p| p.wait().map(|end| match end {
        CommandEnd::Exited(code) => code.into(),
        CommandEnd::Signalled(signal) => 128 + i64::from(signal),
        CommandEnd::Interrupted => 130,
    });
    /// Returns whether the program has ended.
    memgauge_ended() => |p| p.ended().transpose().map(|end| end.is_some().into());
    /// Returns the region around a region; 0 if there is none.
    memgauge_region_outer(region: u32) =>
        |p, region| Ok(find_region(p, region)?.outer.map_or(0, |outer| outer.0.into()));
    /// Number of threads of followed processes that were not sampled.
    memgauge_missed() => |p| Ok(p.missed() as i64);
    /// Forgets threads that have ended and whose samples were read; with `all`, also those with
    /// unread samples. Returns the number of threads.
    memgauge_clean(all: c_int) => |p, all| {
        let which = if all != 0 { Clean::All } else { Clean::Read };
        Ok(p.clean(which).len() as i64)
    };
}

/// Writes the counts of a thread.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_get_statistics(
    profiler: *const CProfiler,
    tid: u32,
    into: *mut CStatistics,
) -> c_int {
    catch_errors_as_int(|| {
        // SAFETY: as the caller promises.
        let counts = unsafe { live_object(profiler) }?.profiler.statistics(tid)?;
        // SAFETY: as the caller promises.
        unsafe { put(into, CStatistics::from(&counts), "statistics") }
    })
}

/// Writes the counts of at most `max` threads, in the order in which they were added. Returns the
/// number of threads.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room for `max` structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_get_all_statistics(
    profiler: *const CProfiler,
    into: *mut CStatistics,
    max: usize,
) -> i64 {
    catch_errors(|| {
        // SAFETY: as the caller promises.
        let all = unsafe { live_object(profiler) }?.profiler.all_statistics();
        if into.is_null() && max > 0 {
            return Err(null_argument("statistics"));
        }
        for (at, counts) in all.iter().take(max).enumerate() {
            // SAFETY: `at` is below `max`, so `into` is not NULL.
            unsafe { into.add(at).write(CStatistics::from(counts)) };
        }
        Ok(all.len() as i64)
    })
}

/// Creates a reader of a thread, or of all threads for 0.
///
/// # Safety
/// `profiler` is NULL or was not freed; `into` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_new(
    profiler: *const CProfiler,
    tid: u32,
    how: c_int,
    into: *mut *mut CReader,
) -> c_int {
    catch_errors_as_int(|| {
        // SAFETY: as the caller promises.
        unsafe { put(into, std::ptr::null_mut(), "reader") }?;
        // SAFETY: as the caller promises.
        let profiler = &unsafe { live_object(profiler) }?.profiler;
        let reader = match tid {
            0 => profiler.reader(sharing(how)?)?,
            tid => profiler.reader_of_thread(tid, sharing(how)?)?,
        };
        let reader = Box::into_raw(Box::new(CReader {
            inner: Mutex::new(BufferedReader {
                reader,
                samples: Vec::new(),
            }),
            creator_pid: std::process::id(),
        }));
        // SAFETY: not NULL, as above.
        unsafe { put(into, reader, "reader") }
    })
}

/// Frees a reader.
///
/// # Safety
/// `reader` is NULL or a reader that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_free(reader: *mut CReader) {
    // SAFETY: as the caller promises.
    unsafe { free(reader) };
}

/// Returns a descriptor that is readable when there may be samples. It belongs to the reader.
///
/// # Safety
/// `reader` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_fd(reader: *const CReader) -> c_int {
    catch_errors(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { live_object(reader) }?;
        Ok(reader.lock().reader.as_fd().as_raw_fd())
    }) as c_int
}

/// Waits for at most `timeout_ms`. Returns 1 if there may be samples, 0 after the timeout.
///
/// # Safety
/// `reader` is NULL or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_wait(reader: *const CReader, timeout_ms: u32) -> c_int {
    catch_errors(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { live_object(reader) }?;
        let timeout = Duration::from_millis(timeout_ms.into());
        Ok(i32::from(reader.lock().reader.wait(timeout)))
    }) as c_int
}

/// Reads at most `max` samples and returns their number.
///
/// # Safety
/// `reader` is NULL or was not freed; `into` has room for `max` samples.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memgauge_reader_read(
    reader: *const CReader,
    into: *mut CSample,
    max: usize,
) -> i64 {
    catch_errors(|| {
        // SAFETY: as the caller promises.
        let reader = unsafe { live_object(reader) }?;
        if into.is_null() {
            return Err(null_argument("samples"));
        }
        let BufferedReader { reader, samples } = &mut *reader.lock();
        samples.clear();
        reader.read(samples, max);
        for (at, sample) in samples.iter().enumerate() {
            // SAFETY: `at` is below `max`, for which there is room.
            unsafe { into.add(at).write(CSample::from(sample)) };
        }
        Ok(samples.len() as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settings for these fields in C.
    fn settings_with(overhead: f64, phases: c_int) -> Settings {
        let mut given = CSettings::new();
        (given.overhead, given.phases) = (overhead, phases);
        // SAFETY: it is filled in, and its event is NULL.
        unsafe { settings(&raw const given, false) }.expect("they can be read")
    }

    #[test]
    fn overhead_and_phases_are_passed_on() {
        let usual = settings_with(0.0, 0);
        assert_eq!(usual, Settings::new(Source::Clock));
        let spent = settings_with(0.02, 1);
        assert_eq!((spent.overhead, spent.phases), (Some(0.02), true));
        for (overhead, phases, says) in
            [(0.0, 1, "the overhead"), (2.0, 0, "`2`"), (-1.0, 0, "`-1`")]
        {
            let error = Profiler::new(settings_with(overhead, phases))
                .err()
                .expect("refused");
            assert_eq!(code(&error), BAD_ARGUMENT);
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = Profiler::new(settings_with(f64::NAN, 0))
            .err()
            .expect("refused");
        assert_eq!(code(&error), BAD_ARGUMENT, "{error}");
    }

    #[test]
    fn flag_other_than_0_or_1_is_refused() {
        let mut given = CSettings::new();
        given.kernel = 7;
        // SAFETY: it is filled in, and its event is NULL.
        let error = unsafe { settings(&raw const given, false) }.expect_err("refused");
        assert_eq!(code(&error), BAD_ARGUMENT);
        assert!(error.to_string().contains("kernel `7`"), "{error}");
    }

    #[test]
    fn text_is_truncated_to_the_room_and_counted_in_full() {
        for (room, written) in [
            (0, &b"????"[..]),
            (1, b"\0???"),
            (3, b"ab\0?"),
            (4, b"abc\0"),
        ] {
            let mut into = *b"????";
            // SAFETY: there are four bytes of room, or more.
            let all = unsafe { write_text("abc", into.as_mut_ptr().cast(), room) };
            assert_eq!(all.expect("there is room"), 3);
            assert_eq!(into, *written, "{room}");
        }
        // SAFETY: NULL has no room.
        assert!(unsafe { write_text("abc", std::ptr::null_mut(), 0) }.is_ok());
        // SAFETY: as before.
        assert!(unsafe { write_text("abc", std::ptr::null_mut(), 1) }.is_err());
    }
}
