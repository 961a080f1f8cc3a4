//! libpfm4, the library with processor vendors' names of events.
//!
//! The library is loaded only when a name needs it (`dlopen`), so that memgauge runs without it.
//! The structures are those of `perfmon/pfmlib.h` and `pfmlib_perf_event.h`, version 4.13 (ABI 0).
//! The library checks their sizes.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use memgauge_perf::abi::Attr;

/// `PFM_OS_PERF_EVENT`: without perf's own modifiers, which memgauge reads.
const PERF_EVENT: c_int = 1;
/// `PFM_PLM0 | PFM_PLM3`: kernel and user space.
const ALL_MODES: c_int = 0x1 | 0x8;
/// More PMUs than any version of the library numbers.
const MAX_PMUS: c_int = 2048;

#[repr(C)]
struct Encoding {
    attr: *mut Attr,
    full_name: *mut *mut c_char,
    size: usize,
    index: c_int,
    cpu: c_int,
    flags: c_int,
    padding: c_int,
}

#[repr(C)]
struct PmuInfo {
    name: *const c_char,
    description: *const c_char,
    size: usize,
    pmu: c_int,
    kind: c_int,
    events: c_int,
    first_event: c_int,
    max_encoding: c_int,
    counters: c_int,
    fixed_counters: c_int,
    flags: u32,
}

#[repr(C)]
struct EventInfo {
    name: *const c_char,
    description: *const c_char,
    equivalent: *const c_char,
    size: usize,
    code: u64,
    pmu: c_int,
    dtype: c_int,
    index: c_int,
    attributes: c_int,
    reserved: c_int,
    flags: u32,
}

const _: () = {
    assert!(size_of::<Encoding>() == 40);
    assert!(size_of::<PmuInfo>() == 56);
    assert!(size_of::<EventInfo>() == 64);
};

type Encode = unsafe extern "C" fn(*const c_char, c_int, c_int, *mut c_void) -> c_int;
type PmuInfoOf = unsafe extern "C" fn(c_int, *mut PmuInfo) -> c_int;
type EventInfoOf = unsafe extern "C" fn(c_int, c_int, *mut EventInfo) -> c_int;
type Next = unsafe extern "C" fn(c_int) -> c_int;
type Explain = unsafe extern "C" fn(c_int) -> *const c_char;

struct Library {
    encode: Encode,
    pmu_info: PmuInfoOf,
    event_info: EventInfoOf,
    next: Next,
    explain: Explain,
}

/// An event that the library knows of this machine's processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorEvent {
    /// The library's name for the processor's family.
    pub pmu: String,
    /// The vendor's name.
    pub name: String,
    /// Description of the event.
    pub description: String,
}

/// The library, loaded once. `None` if it is not installed.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref()
}

/// Returns true if the library is installed.
pub(crate) fn is_installed() -> bool {
    library().is_some()
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle that `dlopen` gave, and a terminated string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn load() -> Option<Library> {
    // SAFETY: a terminated string; the library's constructors do nothing.
    let handle = unsafe { libc::dlopen(c"libpfm.so.4".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return None;
    }
    let initialize = symbol(handle, c"pfm_initialize")?;
    // SAFETY: `int pfm_initialize(void)`.
    let initialize: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(initialize) };
    // SAFETY: no arguments; called once, before all others.
    if unsafe { initialize() } != 0 {
        return None;
    }
    let encode = symbol(handle, c"pfm_get_os_event_encoding")?;
    let pmu_info = symbol(handle, c"pfm_get_pmu_info")?;
    let event_info = symbol(handle, c"pfm_get_event_info")?;
    let next = symbol(handle, c"pfm_get_event_next")?;
    let explain = symbol(handle, c"pfm_strerror")?;
    Some(Library {
        // SAFETY: `pfm_err_t pfm_get_os_event_encoding(const char *, int, pfm_os_t, void *)`.
        encode: unsafe { std::mem::transmute::<*mut c_void, Encode>(encode) },
        // SAFETY: `pfm_err_t pfm_get_pmu_info(pfm_pmu_t, pfm_pmu_info_t *)`.
        pmu_info: unsafe { std::mem::transmute::<*mut c_void, PmuInfoOf>(pmu_info) },
        // SAFETY: `pfm_err_t pfm_get_event_info(int, pfm_os_t, pfm_event_info_t *)`.
        event_info: unsafe { std::mem::transmute::<*mut c_void, EventInfoOf>(event_info) },
        // SAFETY: `int pfm_get_event_next(int)`.
        next: unsafe { std::mem::transmute::<*mut c_void, Next>(next) },
        // SAFETY: `const char *pfm_strerror(int)`.
        explain: unsafe { std::mem::transmute::<*mut c_void, Explain>(explain) },
    })
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts are terminated and never freed.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_string_lossy().into_owned()
}

/// Encodes a vendor's event such as `MEM_LOAD_RETIRED:L3_MISS`. `None` if the library is not
/// installed.
///
/// # Errors
/// The library's error.
pub fn encode(name: &str) -> Option<Result<Attr, String>> {
    let library = library()?;
    let Ok(name) = CString::new(name) else {
        return Some(Err("a name has no zero byte".to_owned()));
    };
    // The library looks at the size: its own structure may be shorter.
    let mut attr = Attr::new(0, 0);
    let mut encoding = Encoding {
        attr: &raw mut attr,
        full_name: std::ptr::null_mut(),
        size: size_of::<Encoding>(),
        index: 0,
        cpu: 0,
        flags: 0,
        padding: 0,
    };
    let place = (&raw mut encoding).cast();
    // SAFETY: the string is terminated, and the structure holds its own size. Its
    // attribute is at least as long as any that the library fills in.
    let code = unsafe { (library.encode)(name.as_ptr(), ALL_MODES, PERF_EVENT, place) };
    Some(match code {
        // Uses only the fields that select the event. Modes and periods are memgauge's.
        0 => Ok(Attr {
            config1: attr.config1,
            config2: attr.config2,
            ..Attr::new(attr.kind, attr.config)
        }),
        // SAFETY: any number; the text is static.
        _ => Err(text(unsafe { (library.explain)(code) })),
    })
}

/// The events of this machine's PMUs. Empty if the library is not installed.
pub fn events() -> Vec<VendorEvent> {
    let Some(library) = library() else {
        return Vec::new();
    };
    let present = (0..MAX_PMUS).filter_map(|number| pmu(library, number));
    present.flat_map(|pmu| events_of(library, &pmu)).collect()
}

fn pmu(library: &Library, number: c_int) -> Option<PmuInfo> {
    // SAFETY: an all-zero structure of numbers and pointers is valid.
    let mut info: PmuInfo = unsafe { std::mem::zeroed() };
    info.size = size_of::<PmuInfo>();
    // SAFETY: a structure that says its own size.
    let known = unsafe { (library.pmu_info)(number, &raw mut info) } == 0;
    // A core PMU: the kernel's own events have their names already.
    const CORE: c_int = 1;
    (known && info.flags & 1 == 1 && info.kind == CORE).then_some(info)
}

fn events_of(library: &Library, pmu: &PmuInfo) -> Vec<VendorEvent> {
    let mut all = Vec::new();
    let mut number = pmu.first_event;
    while number != -1 && all.len() < usize::try_from(pmu.events).unwrap_or(0) {
        // SAFETY: an all-zero structure of numbers and pointers is valid.
        let mut info: EventInfo = unsafe { std::mem::zeroed() };
        info.size = size_of::<EventInfo>();
        // SAFETY: a structure that says its own size.
        if unsafe { (library.event_info)(number, PERF_EVENT, &raw mut info) } != 0 {
            break;
        }
        all.push(VendorEvent {
            pmu: text(pmu.name),
            name: text(info.name),
            description: text(info.description),
        });
        // SAFETY: any number.
        number = unsafe { (library.next)(number) };
    }
    all
}
