from dataclasses import asdict
from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

DECODE = ",".join(f"{rows}x1" for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 320, 512, 960))
PREFILL = "1x512,1x1024,1x4096,8x512,32x128"


class Command(BaseCommand):
    help = "Measure the CUDA back end: tokens per second of decode and prefill cases, against what the GPU allows."

    def add_arguments(self, parser) -> None:
        parser.add_argument("--model", default=settings.RWKV.model, help="checkpoint (default: MODEL)")
        parser.add_argument("--cases", default=f"{DECODE},{PREFILL}", help="comma-separated ROWSxTOKENS")
        parser.add_argument("--state", choices=("float16", "float32"), default="float16", help="how states are stored")
        parser.add_argument("--iterations", type=int, default=30)
        parser.add_argument("--no-check", action="store_true", help="skip the comparisons with other arithmetic")
        parser.add_argument("--profile", action="store_true", help="also list the kernels of each case by their time")
        parser.add_argument("--output", help="write a JSON report here")

    def handle(self, **options) -> None:
        import torch

        from inference.engine.bench import Bench, parse_case, write_report

        if not torch.cuda.is_available():
            raise CommandError("there is no CUDA GPU here")
        if not options["model"]:
            raise CommandError("name a checkpoint: --model PATH, or MODEL in the environment")
        try:
            cases = [(case, *parse_case(case)) for case in options["cases"].split(",")]
        except ValueError as error:
            raise CommandError(f"--cases: {error}") from None
        checkpoint = Path(options["model"])
        bench = Bench(
            checkpoint,
            slots=max(rows for _, rows, _ in cases),
            state_dtype=getattr(torch, options["state"]),
            iterations=options["iterations"],
        )
        ceilings = bench.ceilings
        self.stdout.write(f"copy {ceilings.copy / 1e12:.2f} TB/s, fp16 product {ceilings.product / 1e12:.0f} TFLOP/s")
        self.stdout.write(f"{'case':>9} {'p10 ms':>8} {'p50 ms':>8} {'p90 ms':>8} {'tok/s':>9} {'sampled':>9} "
                          f"{'GB/s':>7} {'TFLOP/s':>7} {'bound':>9} {'share':>6}")  # fmt: skip
        results = []
        for case, _, _ in cases:
            one = bench.run(case)
            results.append(one)
            sampled = f"{one.sampled_tok_s:9.0f}" if one.sampled_tok_s else f"{'-':>9}"
            self.stdout.write(
                f"{one.case:>9} {one.p10_ms:8.3f} {one.p50_ms:8.3f} {one.p90_ms:8.3f} {one.tok_s:9.0f} {sampled} "
                f"{one.gb_s:7.0f} {one.tflop_s:7.1f} {one.bound_tok_s:9.0f} {one.share:6.1%}"
                + ("" if one.finite else "  NOT FINITE")
            )
            for kernel in bench.profile(case) if options["profile"] else ():
                self.stdout.write(f"{'':>12}{kernel.ms:8.3f} ms {kernel.launches:5} x {kernel.name}")
            self.stdout.flush()
        for one, (_, _, tokens) in zip(results, cases, strict=True):
            if tokens == 1:
                one.sustained_tok_s = bench.sustained(one.case)
                self.stdout.write(f"{one.case:>9} {one.sustained_tok_s:9.0f} tok/s sampled, for seconds on end")
                self.stdout.flush()
        checks = {} if options["no_check"] else self._check(bench, checkpoint)
        if options["output"]:
            chosen = {"cases": options["cases"], "state": options["state"], "iterations": options["iterations"]}
            write_report(Path(options["output"]), bench, results, checks, chosen)
            self.stdout.write(f"wrote {options['output']}")
        if not all(one.finite for one in results):
            raise CommandError("some logits were not finite")

    def _check(self, bench, checkpoint: Path) -> dict[str, object]:
        found = {"against_float32": asdict(bench.check(checkpoint)), "state_drift": asdict(bench.drift())}
        titles = {"against_float32": "against float32", "state_drift": "fp16 states against fp32 ones"}
        for name, agreement in found.items():
            self.stdout.write(
                f"{titles[name]}: over {agreement['steps']} steps logits differ by at most "
                f"{agreement['max_relative_error']:.1e}, {agreement['equal_greedy']:.2%} of greedy tokens are equal"
            )
        company = bench.company()
        self.stdout.write(
            f"requests alone and among others: the text of {company.unchanged} of {company.requests} is the same, "
            f"{company.equal_tokens:.1%} of all tokens; where texts part, the two choices were "
            f"{company.widest_gap:.4f} apart in log probability at most"
        )
        return {**found, "company": asdict(company)}
