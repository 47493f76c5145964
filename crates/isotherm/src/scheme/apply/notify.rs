//! What the service manager hears: the protocol of sd_notify(3), a datagram of `NAME=VALUE` lines to the socket that
//! `NOTIFY_SOCKET` names.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Where to send it; nothing is sent where no service manager asked.
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

/// A path, or `@` and a name that stands in no file system. Others (`vsock:`) are not of this machine.
fn address(name: &OsStr) -> Option<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(name).ok(),
        _ => None,
    }
}

/// How often the service manager wants to hear that all is well, unless it means another process.
fn watchdog(usec: Option<OsString>, pid: Option<OsString>) -> Option<Duration> {
    let number = |text: OsString| text.to_str()?.parse::<u64>().ok();
    let meant = pid.is_none_or(|pid| number(pid) == Some(u64::from(std::process::id())));
    usec.and_then(number).filter(|usec| meant && *usec > 0).map(Duration::from_micros)
}

impl Notify {
    /// As the environment says.
    pub fn from_env() -> Self {
        let to = std::env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let socket = UnixDatagram::unbound().ok()?;
            // A manager that does not listen holds up nothing.
            socket.set_nonblocking(true).ok()?;
            Some((socket, address(&name)?))
        });
        let watchdog = watchdog(std::env::var_os("WATCHDOG_USEC"), std::env::var_os("WATCHDOG_PID"));
        Self { to, watchdog }
    }

    /// Whether anybody hears it.
    pub const fn is_heard(&self) -> bool {
        self.to.is_some()
    }

    /// How often [`Self::alive`] is to be called: twice as often as the manager waits.
    pub fn alive_every(&self) -> Option<Duration> {
        self.to.as_ref().and(self.watchdog).map(|time| time / 2)
    }

    fn send(&self, text: &str) {
        if let Some((socket, to)) = &self.to {
            // There is nobody else to tell.
            let _ = socket.send_to_addr(text.as_bytes(), to);
        }
    }

    /// Schemes act.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// Schemes are read again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        let usec = isotherm_linux::monotonic_ns() / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// How things stand, a line.
    pub fn status(&self, line: &str) {
        self.send(&format!("STATUS={}", line.replace('\n', " ")));
    }

    /// All is well.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// It ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let own = std::process::id().to_string();
        let text = |text: &str| Some(OsString::from(text));
        assert_eq!(watchdog(text("2000000"), None), Some(Duration::from_secs(2)));
        assert_eq!(watchdog(text("5"), text(&own)), Some(Duration::from_micros(5)));
        for (usec, pid) in [(text("5"), text("1")), (text("0"), None), (text("soon"), None), (None, None)] {
            assert_eq!(watchdog(usec, pid), None);
        }
    }

    #[test]
    fn addresses_are_paths_or_abstract() {
        let of = |name: &str| address(OsStr::new(name));
        assert_eq!(of("/run/x").unwrap().as_pathname().unwrap().to_str(), Some("/run/x"));
        assert_eq!(of("@x/y").unwrap().as_abstract_name(), Some(&b"x/y"[..]));
        assert!(of("vsock:2:1234").is_none() && of("").is_none() && of(&"/".repeat(200)).is_none());
    }
}
