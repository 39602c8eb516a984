//! A store that wraps another one: contracts that it does not change are forwarded.

/// Implements contracts for a store that wraps another one, by forwarding every call to the named field.
///
/// ```ignore
/// selvedge_store::forward!([] Counting, inner: Logs, Leases, Inbox, Registry, Feed, Ledger);
/// selvedge_store::forward!([S: Store] Watched<S>, inner: Registry);
/// ```
#[macro_export]
macro_rules! forward {
    (@Logs [$($generics:tt)*] $type:ty, $inner:ident) => {
        impl<$($generics)*> $crate::Logs for $type {
            fn head(&self, thread: &$crate::model::ThreadId) -> $crate::Result<$crate::log::Head> {
                self.$inner.head(thread)
            }
            fn read(&self, thread: &$crate::model::ThreadId, from: u64, limit: usize) -> $crate::Result<Vec<$crate::log::Line>> {
                self.$inner.read(thread, from, limit)
            }
            fn transcript(
                &self,
                thread: &$crate::model::ThreadId,
            ) -> $crate::Result<($crate::log::Head, Box<dyn std::io::BufRead + Send>)> {
                self.$inner.transcript(thread)
            }
            fn blob(&self, thread: &$crate::model::ThreadId, blob: &$crate::model::Digest) -> $crate::Result<Vec<u8>> {
                self.$inner.blob(thread, blob)
            }
        }
    };
    (@Leases [$($generics:tt)*] $type:ty, $inner:ident) => {
        impl<$($generics)*> $crate::Leases for $type {
            fn acquire(&self, thread: &$crate::model::ThreadId, how: $crate::Acquire) -> $crate::Result<$crate::Lease> {
                self.$inner.acquire(thread, how)
            }
            fn renew(&self, lease: &$crate::Lease) -> $crate::Result<()> {
                self.$inner.renew(lease)
            }
            fn owner(&self) -> &$crate::model::OwnerId {
                self.$inner.owner()
            }
            fn beat(&self, at: $crate::model::Timestamp) -> $crate::Result<()> {
                self.$inner.beat(at)
            }
            fn last_beat(&self, owner: &$crate::model::OwnerId) -> $crate::Result<Option<$crate::model::Timestamp>> {
                self.$inner.last_beat(owner)
            }
            fn release(&self, lease: &$crate::Lease) -> $crate::Result<()> {
                self.$inner.release(lease)
            }
            fn abandon(&self, lease: &$crate::Lease) -> $crate::Result<()> {
                self.$inner.abandon(lease)
            }
            fn holder(&self, thread: &$crate::model::ThreadId) -> $crate::Result<Option<$crate::model::OwnerId>> {
                self.$inner.holder(thread)
            }
            fn expired(&self) -> $crate::Result<Vec<$crate::Lease>> {
                self.$inner.expired()
            }
        }
    };
    (@Inbox [$($generics:tt)*] $type:ty, $inner:ident) => {
        impl<$($generics)*> $crate::Inbox for $type {
            fn post(&self, posted: $crate::model::Posted) -> $crate::Result<$crate::Delivery> {
                self.$inner.post(posted)
            }
            fn pending(&self, thread: &$crate::model::ThreadId) -> $crate::Result<Vec<$crate::QueuedRequest>> {
                self.$inner.pending(thread)
            }
            fn answered(
                &self,
                thread: &$crate::model::ThreadId,
                id: &$crate::model::RequestId,
            ) -> $crate::Result<Option<($crate::model::ThreadId, u64)>> {
                self.$inner.answered(thread, id)
            }
            fn newest(&self) -> $crate::Result<u64> {
                self.$inner.newest()
            }
            fn arrivals(&self, after: u64, limit: usize) -> $crate::Result<Vec<$crate::PostedNotice>> {
                self.$inner.arrivals(after, limit)
            }
        }
    };
    (@Registry [$($generics:tt)*] $type:ty, $inner:ident) => {
        impl<$($generics)*> $crate::Registry for $type {
            fn get(&self, thread: &$crate::model::ThreadId) -> $crate::Result<$crate::Summary> {
                self.$inner.get(thread)
            }
            fn list(
                &self,
                filter: &$crate::Filter,
                after: Option<$crate::Cursor>,
                limit: usize,
            ) -> $crate::Result<$crate::Page<$crate::Summary>> {
                self.$inner.list(filter, after, limit)
            }
            fn chain(&self, thread: &$crate::model::ThreadId) -> $crate::Result<Vec<$crate::Summary>> {
                self.$inner.chain(thread)
            }
            fn children(&self, thread: &$crate::model::ThreadId) -> $crate::Result<Vec<$crate::Summary>> {
                self.$inner.children(thread)
            }
            fn runs(&self, thread: &$crate::model::ThreadId) -> $crate::Result<Vec<$crate::model::Run>> {
                self.$inner.runs(thread)
            }
            fn resolve(&self, prefix: &str) -> $crate::Result<$crate::model::ThreadId> {
                self.$inner.resolve(prefix)
            }
            fn tombstone(&self, thread: &$crate::model::ThreadId) -> $crate::Result<Option<$crate::Tombstone>> {
                self.$inner.tombstone(thread)
            }
        }
    };
    (@Feed [$($generics:tt)*] $type:ty, $inner:ident) => {
        impl<$($generics)*> $crate::Feed for $type {
            fn position(&self) -> $crate::Result<u64> {
                self.$inner.position()
            }
            fn after(&self, position: u64, limit: usize) -> $crate::Result<Vec<$crate::FeedEntry>> {
                self.$inner.after(position, limit)
            }
            fn leases_freed(&self) -> u64 {
                self.$inner.leases_freed()
            }
            fn watch(&self, seen: $crate::Position, timeout: std::time::Duration) -> $crate::Result<()> {
                self.$inner.watch(seen, timeout)
            }
        }
    };
    (@Ledger [$($generics:tt)*] $type:ty, $inner:ident) => {
        impl<$($generics)*> $crate::Ledger for $type {
            fn account(
                &self,
                id: &$crate::model::account::AccountId,
            ) -> $crate::Result<Option<$crate::model::account::Account>> {
                self.$inner.account(id)
            }
            fn tree(&self, id: &$crate::model::account::AccountId) -> $crate::Result<Vec<$crate::model::account::Account>> {
                self.$inner.tree(id)
            }
            fn reservations(
                &self,
                account: &$crate::model::account::AccountId,
            ) -> $crate::Result<Vec<$crate::model::account::Reservation>> {
                self.$inner.reservations(account)
            }
        }
    };
    ($generics:tt $type:ty, $inner:ident: $($contract:ident),+ $(,)?) => {
        $($crate::forward!(@$contract $generics $type, $inner);)+
    };
}
