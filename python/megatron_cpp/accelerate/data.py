"""Loaders of a script, dealt to the ranks as Accelerate deals them for Megatron-LM."""

import math


class ShardedLoader:
    """A torch DataLoader whose batches have micro_batch_size * num_micro_batches samples. Whole
    batches go to the data-parallel ranks in turn; the last ones are completed with samples from the
    beginning, so that every rank has equally many. A random sampler gets a new order in each epoch:
    torch.randperm, seeded with the seed plus the epoch, alike on every rank."""

    def __init__(self, loader, batch_size, rank, size, skip=0):
        import torch

        self.loader = loader
        self.batch_size = batch_size
        self.rank = rank
        self.size = size
        self.skip = skip
        self.epoch = 0
        self.seed = torch.initial_seed() % 2**63
        self.end_of_dataloader = False
        self.remainder = -1
        self.dataset = loader.dataset
        self.is_indexed = hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__")

    def _order(self):
        import torch

        count = len(self.dataset)
        sampler = getattr(self.loader, "sampler", None)
        if isinstance(sampler, torch.utils.data.RandomSampler):
            generator = torch.Generator()
            generator.manual_seed((self.seed + self.epoch) % 2**63)
            return torch.randperm(count, generator=generator).tolist()
        if sampler is None or isinstance(sampler, torch.utils.data.SequentialSampler):
            return list(range(count))
        return list(sampler)

    def _batches(self):
        order = self._order()
        if not order:
            return []
        drops = getattr(self.loader, "drop_last", False)
        batches = [order[i:i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        if drops and len(batches[-1]) < self.batch_size:
            batches.pop()
        whole = math.ceil(len(batches) / self.size) * self.size
        if drops:
            whole = len(batches) // self.size * self.size
        self.remainder = len(order) % (self.batch_size * self.size)
        at = 0
        for index in range(whole):
            if index >= len(batches):
                batches.append([])
            batch = batches[index]
            while len(batch) < self.batch_size:
                batch.append(order[at % len(order)])
                at += 1
        return batches[self.rank:whole:self.size]

    def __len__(self):
        count = len(self.dataset)
        drops = getattr(self.loader, "drop_last", False)
        batches = count // self.batch_size if drops else math.ceil(count / self.batch_size)
        mine = batches // self.size if drops else math.ceil(batches / self.size)
        return max(mine - self.skip, 0)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.end_of_dataloader = False
        self.remainder = -1
        made = self._indexed() if self.is_indexed else self._streamed()
        self.epoch += 1
        previous = None
        for batch in made:
            if previous is not None:
                yield previous
            previous = batch
        if previous is not None:
            self.end_of_dataloader = True
            yield previous

    def _indexed(self):
        import torch

        batches = self._batches()[self.skip:]
        return iter(torch.utils.data.DataLoader(
            self.dataset, batch_sampler=batches, collate_fn=self.loader.collate_fn,
            num_workers=self.loader.num_workers))

    def _streamed(self):
        """An iterable dataset: samples in groups, the last group completed from the first."""
        first = None
        skipped = self.skip
        group = []
        per_round = self.batch_size * self.size

        def collated(samples):
            own = samples[self.rank * self.batch_size:(self.rank + 1) * self.batch_size]
            return self.loader.collate_fn(own)

        for sample in self.dataset:
            group.append(sample)
            if len(group) == per_round:
                first = first or list(group)
                if skipped:
                    skipped -= 1
                else:
                    yield collated(group)
                group = []
        if group and not getattr(self.loader, "drop_last", False):
            source = first or list(group)
            self.remainder = len(group)
            group += [source[i % len(source)] for i in range(per_round - len(group))]
            yield collated(group)


class IndexedLoader:
    """Stands for indexed data, which the engine reads itself: iter() gives empty batches without
    end."""

    def __init__(self, split):
        self.split = split
        self.end_of_dataloader = False
        self.remainder = -1

    def __iter__(self):
        return self

    def __next__(self):
        return {}


def skip_first_batches(loader, num_batches=0):
    """A loader without the first batches."""
    if isinstance(loader, ShardedLoader):
        made = ShardedLoader(loader.loader, loader.batch_size, loader.rank, loader.size,
                             loader.skip + num_batches)
        made.epoch, made.seed = loader.epoch, loader.seed
        return made
    if isinstance(loader, IndexedLoader) or num_batches == 0:
        return loader
    return _Skipped(loader, num_batches)


class _Skipped:
    def __init__(self, loader, count):
        self.loader = loader
        self.count = count

    def __len__(self):
        return max(len(self.loader) - self.count, 0)

    def __iter__(self):
        for index, batch in enumerate(self.loader):
            if index >= self.count:
                yield batch
