"""Lines as many frameworks print them: training steps, the evaluations beside them, and what is neither.

The lines have the shape of what each of them writes, with made-up numbers.
"""

# ruff: noqa: E501 - lines as they are printed

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.progress import ProgressReader
from airflow_ft.core.sightings import ENTRIES
from airflow_ft.core.steplines import read_line

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)

# {n} is the step, {m} the one nine steps before
TRAINING = {
    "megatron": " [2025-06-01 12:00:00.123456] iteration {n:8d}/  500000 | consumed samples:       102400 | elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 400.1 | learning rate: 2.9E-04 | global batch size:  1024 | lm loss: 2.114302E+00 | loss scale: 1.0 | grad norm: 0.412 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "ds-pipe": "steps: {n} loss: 2.5123 iter time (s): 1.234 samples/sec: 100.123",
    "nemo1": "Epoch 0: :   1%|          | {n}/10000 [00:10<1:30:00, v_num=abc, reduced_train_loss=9.310, global_step={n}.0, consumed_samples=5120.0, train_step_timing in s=1.230]",
    "titan": "[rank0]:[titan] 2025-01-01 10:00:00,123 - root - INFO - step: {n:2d}  loss:  8.1234  grad_norm:  1.2  memory: 10.00GiB(12.1%)  tps: 1,234  tflops: 12.34  mfu: 41.46%",
    "llmfoundry": "[batch={n}/4800]:",
    "mmcv": "2021-05-01 12:00:00,123 - mmdet - INFO - Epoch [1][{n}/7330]\tlr: 1.978e-03, eta: 1 day, 10:01:20, time: 0.5, data_time: 0.05, memory: 3000, loss_rpn_cls: 0.6, loss: 2.01",
    "mmseg": "2021-05-01 12:00:00,123 - mmseg - INFO - Iter [{n}/80000]\tlr: 9.9e-03, eta: 10:01:20, time: 0.5, data_time: 0.05, memory: 3000, decode.loss_ce: 0.6, loss: 2.01",
    "keras3": "{n}/500 ━━━━━━━━━━━━━━━━━━━━ 3s 6ms/step - accuracy: 0.87 - loss: 0.4012",
    "maxtext": "completed step: {n}, seconds: 5.021, TFLOP/s/device: 350.1, Tokens/s/device: 6500.1, total_weights: 65536, loss: 9.231",
    "llamafactory": '{{"current_steps": {n}, "total_steps": 1250, "loss": 1.2, "lr": 5e-05, "epoch": 0.1, "percentage": 0.8, "elapsed_time": "0:00:10", "remaining_time": "0:21:00"}}',
    "olmo": "2024-05-01 12:00:00.123\thost:0\tolmo.train:967\tINFO\t[step={n}/739328]",
    "olmo2": "2024-05-01 12:00:00.123\thost:0\tolmo.train:967\tINFO\t[step={n}/739328,epoch=0]",
    "olmo-core": "2025-01-01 12:00:00.123\thost:0\tolmo_core.train.callbacks.console_logger:50\tINFO\t[step={n}/1000,epoch=1]",
    "levanter": "Progress on:train {n}.0it/1.00kit rate:1.2it/s remaining:0:14:00 elapsed:0:00:10 postfix:loss=2.31",
    "torchtune": "1|{n}|Loss: 2.3112:   1%|          | {n}/1000 [00:10<14:00,  1.2it/s]",
    "torchtune-file": "Step {n} | loss:2.3112 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_active:12.3",
    "verl": "(TaskRunner pid=1234) step:{n} - global_seqlen/min:1234.000 - actor/entropy:0.44 - actor/pg_loss:0.002 - perf/throughput:1000.1 - timing_s/step:12.3",
    "verl-bar": "(TaskRunner pid=1234) Training Progress:   1%|          | {n}/1000 [00:10<14:00,  1.2s/it]",
    "openrlhf": "Train step of epoch 0:   1%|          | {n}/1000 [00:10<14:00,  1.2it/s, gpt_loss=2.31, loss_mean=2.31, lr=5e-6]",
    "paddlenlp": "[2024-05-01 12:00:00,123] [    INFO] - loss: 2.31, learning_rate: 3e-05, global_step: {n}, interval_runtime: 1.2, interval_samples_per_second: 100.1, interval_steps_per_second: 1.2, progress_or_epoch: 0.01",
    "paddlenlp-old": "[2024-05-01 12:00:00,123] [    INFO] - global step {n}, epoch: 1, batch: {n}, loss: 2.31, speed: 1.2 step/s",
    "ppdet": "[05/01 12:00:00] ppdet.engine INFO: Epoch: [0] [{n:4d}/7329] learning_rate: 0.0001 loss_cls: 1.1 loss: 2.31 eta: 1 day, 10:00:00 batch_cost: 0.5 data_cost: 0.0 ips: 4.0 images/s",
    "ppcls": "[2024/05/01 12:00:00] ppcls INFO: [Train][Epoch 1/120][Iter: {n}/5005]lr(Piecewise): 0.1, top1: 0.001, CELoss: 6.9, loss: 6.9, batch_cost: 0.3s, reader_cost: 0.1, ips: 200.1 samples/s, eta: 1 day",
    "ppocr": "[2024/05/01 12:00:00] ppocr INFO: epoch: [1/500], global_step: {n}, lr: 0.001, loss: 6.2, avg_reader_cost: 0.1 s, avg_batch_cost: 0.2 s, avg_samples: 64, ips: 100.1",
    "mindspore": "epoch: 1 step: {n}, loss is 2.31",
    "mindformers": "2024-05-01 12:00:00,123 - mindformers[callback.py:316] - INFO - {{ Epoch:[  1/  2], step:[{n:5d}/ 1563], loss: 2.310, per_step_time: 1234ms, lr: 1e-05, overflow cond: False, loss_scale: 1.0, global_norm: 1.2 }}",
    "yolo": "      1/100      2.31G      1.234      2.345      1.123         45        640:  10%|█         | {n}/500 [00:10<01:30,  1.1it/s]",
    "yolo-new": "      1/100      2.31G      1.234      2.345      1.123         45        640: 10% ━╸────────── {n}/500 1.1it/s 10.0s<1:30",
    "detectron2": "[05/01 12:00:00 d2.utils.events]:  eta: 1:23:45  iter: {n}  total_loss: 2.31  loss_cls: 1.1  time: 0.35  data_time: 0.01  lr: 0.0002  max_mem: 5000M",
    "clu": "I0501 12:00:00.123456 140123 logging_writer.py:48] [{n}] learning_rate=0.001, loss=2.31",
    "orbit": "train | step: {n:6d} | steps/sec:    1.2 | output: {{'training_loss': 2.31}}",
    "espnet": "[host:0/4] 2024-05-01 12:00:00,123 (trainer:762) INFO: 1epoch:train:{m}-{n}batch: iter_time=0.1, forward_time=0.2, loss=2.31, backward_time=0.3",
    "dlrm": "Finished training it {n}/300000 of epoch 0, 12.30 ms/it, loss 0.131",
    "dll": "DLL 2020-05-01 12:00:00.123456 - Training Epoch: 0 Training Iteration: {n}  average_loss : 11.2  step_loss : 11.2  learning_rate : 0.001",
    "dlll": 'DLLL {{"timestamp": "1588334400.12", "elapsedtime": "12.3", "datetime": "2020-05-01 12:00:00.123", "type": "LOG", "step": [0, {n}], "data": {{"loss": 6.9}}}}',
    "dll-int": 'DLLL {{"timestamp": "1588334400.12", "elapsedtime": "12.3", "type": "LOG", "step": {n}, "data": {{"loss": 6.9}}}}',
    "nanotron": "05/01/2024 12:00:00 [INFO|DP=0|PP=0|TP=0|ip-10-0-0-1]: iteration: {n} / 1000 | consumed_tokens: 1.2M | elapsed_time_per_iteration_ms: 1.2K | tokens_per_sec: 100K | lm_loss: 2.31 | lr: 0.0003 | model_tflops_per_gpu: 100",
    "litgpt": "Epoch 1 | iter {n} step {n} | loss train: 2.310, val: n/a | iter time: 123.45 ms (step) remaining time: 1:23:45",
    "litgpt-old": "iter {n} step {n}: loss 2.3100, iter time: 123.45ms (optimizer.step)",
    "neox": " samples/sec: 100.123 | iteration {n:8d}/  320000 | elapsed time per iteration (ms): 1234.5 | learning rate: 6.000E-04 | approx flops per GPU: 100.1TFLOPS | lm_loss: 2.31E+00 | loss scale: 1.0 | number of skipped iterations: 0",
    "prime-rl": "12:00:00 SUCCESS Step {n} | Time: 10.23s | Loss: 0.0012 | Entropy: 0.3 | Throughput: 1234 tokens/s",
    "openclip": "2024-05-01,12:00:00 | INFO | Train Epoch: 0 [{n:5d}/100000 (3%)] Data (t): 0.1 Batch (t): 0.5, 1000/s LR: 0.000001 Logit Scale: 14.286 Contrastive_loss: 5.2 (5.2) Loss: 5.2 (5.2)",
    "dinov2": "I20240501 12:00:00 123 dinov2 helpers.py:103] Training  [{n:6d}/125000]  eta: 1:00:00  lr: 0.0001 (0.0001)  total_loss: 9.1 (9.2)  time: 0.35  data: 0.01  max mem: 10000",
    "mae": "Epoch: [0]  [{n:4d}/5004]  eta: 1:00:00  lr: 0.000001  loss: 1.1000 (1.2000)  time: 0.35  data: 0.01  max mem: 10000",
    "diffusers": "Steps:   1%|          | {n}/1000 [00:10<14:00,  1.2it/s, lr=1e-5, step_loss=0.1]",
    "xgboost": "[{n}]\ttrain-rmse:0.12300\teval-rmse:0.20000",
    "lightgbm": "[{n}]\ttraining's l2: 0.1\tvalid_1's l2: 0.2",
    "catboost": "{n}:\tlearn: 0.5000\ttotal: 1.2s\tremaining: 9.1s",
    "sb3": "|    total_timesteps      | {n}         |",
    "fairseq2": "[12:00:00] fairseq2.recipes - train metrics - step: {n} - loss: 2.31",
    "rich-lightning": "Epoch 0/9 ━━━━━━━━━━━━━━━━━━ {n}/1000 0:00:10 • 0:01:30 9.90it/s v_num: 0 train_loss: 2.31",
    "t5x": "I0501 12:00:00.123456 140123 train.py:500] Training loop: step {n}, loss 2.31",
    "colossal": "[05/01/24 12:00:00] INFO     colossalai - colossalai - INFO: Epoch 0, Step {n}/1000, Loss: 2.31",
    "hf-cb": "Step {n}/1000 - loss: 2.31 - lr: 1e-5",
    "speechbrain": "epoch: 1, lr: 1.00e-03, steps: {n}, optimizer: Adam - train loss: 2.31",
    "transformer-xl": "| epoch   1 step {n:8d} |    {n} batches | lr 0.00025 | ms/batch 1234.5 | loss  2.31 | ppl    10.07",
    "bert-tf": "I0501 12:00:00 basic_session_run_hooks.py:260] loss = 2.31, step = {n} (12.3 sec)",
    "allenai-tango": "[05/01/24 12:00:00] INFO  epoch 1, batch {n}/1000, loss 2.31",
    "step=": "global_step={n} | loss=2.31",
    "Step[]": "Step [{n}/1000] Loss: 2.31",
    "trainer_state": '{{"epoch": 0.1, "grad_norm": 1.2, "learning_rate": 5e-05, "loss": 2.31, "step": {n}}}',
    "logfmt": 'time=2024-05-01T12:00:00Z level=info msg="train" step={n} loss=2.31',
    "jsonlog": '{{"level":"info","ts":1714564800.1,"msg":"train step","step":{n},"loss":2.31}}',
    "nested": '{{"time": "2024", "metrics": {{"step": {n}, "loss": 2.3}}}}',
    "python-lit": "INFO:root:{{'step': {n}, 'loss': 2.31, 'lr': 1e-05}}",
    "update": "Update {n:5d} | loss 2.31 | 12.3 s",
    "it": "it {n}/1000 loss 2.31",
    "batch": "Batch {n}/1000, loss=2.31",
    "batch2": "epoch 3 batch {n} loss 2.31",
    "completed": "Completed step {n} of 500 in 0.5s",
    "wandb": '{{"_step": {n}, "loss": 2.31}}',
    "quickstart": "loss: 2.303494  [{n:5d}/60000]",
    "cifar": "[1, {n:5d}] loss: 2.164",
    "tutorial": "  batch {n} loss: 0.91",
    "alive": "|████▌            | {n}/600 [10%] in 10s (2.0/s, eta: 5:00)",
    "progressbar2": "10% ({n} of 600) |####      | Elapsed Time: 0:00:10 ETA:   0:05:00 loss: 2.1",
    "notebook": " [ {n:3d}/600 00:05 < 10:12, 2.0 it/s, Epoch 0.10/3]",
    "swift": "{{'loss': 2.31, 'token_acc': 0.71, 'epoch': 0.1, 'global_step/max_steps': '{n}/600', 'percentage': '10.00%'}}",
    "numpy": "{{'step': {n}, 'loss': np.float64(2.31), 'lr': tensor(0.0003, device='cuda:0')}}",
    "diverged": "{{'step': {n}, 'loss': nan, 'grad_norm': inf}}",
    "iter:": "iter: {n} loss: 2.31 lr: 0.1",
    "Iteration n,": "Iteration {n}, loss = 2.31",
    "TrainStep": "train_step: {n} loss: 2.31",
}  # fmt: skip

EVALUATION = {
    "titan-val": "[titan] 2025-01-01 10:00:00,123 - root - INFO - validate step: {n}  loss:  8.1234  memory: 10.00GiB(12.1%)  tps: 1,234",
    "foundry": "[Eval batch={n}/250] Eval on eval/loss data:",
    "foundry2": "[eval batch={n}/250]",
    "yolo": "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| {n}/400 [00:01<00:00,  3.1it/s]",
    "maxtext": "eval metrics after step: {n}, loss=2.31, total_weights=65536.0",
    "megatron": " validation loss at iteration {n} | lm loss value: 2.1E+00 | lm loss PPL: 8.1E+00 | ",
    "megatron2": "Evaluating iter {n}/1000",
    "neox": " validation results at iteration {n} | lm_loss value: 2.1E+00 | lm_loss_ppl value: 8.1E+00 |",
    "fairseq": "2022-03-01 12:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 10.1 | ppl 1000 | num_updates {n}",
    "fairseqj": '2022-03-01 12:00:00 | INFO | valid | {{"epoch": 1, "valid_loss": "10.1", "valid_num_updates": "{n}"}}',
    "orbit": "eval | step: {n} | eval time:    1.2 sec | output: {{'loss': 2.31}}",
    "d2": "[05/01 12:00:00 d2.evaluation.evaluator]: Inference done {n}/5000. Dataloading: 0.001 s/iter. Inference: 0.1 s/iter. Eval: 0.01 s/iter. Total: 0.1 s/iter. ETA=0:10:00",
    "mmval": "2024/01/01 12:00:00 - mmengine - INFO - Epoch(val)  [1][{n}/625]    eta: 0:00:20  time: 0.03  data_time: 0.001  memory: 1000",
    "mmval2": "2024/01/01 12:00:00 - mmengine - INFO - Iter(val) [{n}/500]    eta: 0:00:20  time: 0.03",
    "hf": "{{'eval_loss': 2.1, 'eval_runtime': 10.1, 'eval_samples_per_second': 100.1, 'epoch': 1.0, 'step': {n}}}",
    "hf5": "{{'eval_loss': '2.1', 'eval_runtime': '10.1', 'epoch': '1.0'}}",
    "lightning": "Validation DataLoader 0:  50%|#####     | {n}/1000 [00:01<00:01,  4.0it/s]",
    "lightning1": "Validating:  50%|#####     | {n}/1000 [00:01<00:01,  4.0it/s]",
    "timm": "Test: [{n:4d}/1960]  Time: 0.351 (0.4)  Loss:  1.2 (1.3)  Acc@1: 70.1 (69.1)",
    "openclip": "2024-05-01,12:00:00 | INFO | Eval Epoch: 1 [{n} / 5000]\tClip Loss: 1.2",
    "ppcls": "[2024/05/01 12:00:00] ppcls INFO: [Eval][Epoch 1][Iter: {n}/782]CELoss: 1.2, loss: 1.2, top1: 0.7, batch_cost: 0.1s",
    "espnet": "[host:0/4] 2024-05-01 12:00:00,123 (trainer:762) INFO: 1epoch:valid:{n}-{n}batch: loss=2.31",
    "txl": "| Eval   1 at step    {n} | time: 10.1s | valid loss 2.31 | valid ppl    10.07",
    "levanter": "Progress on:eval {n}.0it/1.00kit rate:1.2it/s remaining:0:14:00 elapsed:0:00:10 postfix:loss=2.31",
    "dino": "I20240501 12:00:00 123 dinov2 helpers.py:103] Test:  [{n}/125]  eta: 1:00:00  loss: 9.1 (9.2)  time: 0.35",
    "clu": "I0501 12:00:00.123456 140123 logging_writer.py:48] [{n}] eval_loss=0.001, eval_acc=2.31",
    "valstep": "val_step={n} val_loss=2.1",
    "evalstep": "eval step {n}/1000 loss 2.1",
    "valacc": "Validation: step {n}/1000, loss 2.1",
    "Val Epoch": "Val Epoch: 1 [{n}/1000] Loss: 2.1",
    "testset": "Test set: Average loss: 0.0123, Accuracy: {n}/10000 (99%)",
    "json": '{{"split": "val", "step": {n}, "loss": 2.1}}',
    "json2": '{{"mode": "eval", "step": {n}, "loss": 2.1}}',
    "json3": '{{"step": {n}, "val_loss": 2.1}}',
    "lmeval": "Running loglikelihood requests:  50%|#####     | {n}/1000 [00:01<00:01,  4.0it/s]",
    "gen": "Generating samples:  50%|#####     | {n}/1000 [00:01<00:01,  4.0it/s]",
}  # fmt: skip

NEITHER = [
    "2026-01-01 12:00:00 listening on port 29500",
    "trainer.py:120 something",
    "12/31/2025 shift loss of power",
    "took 12/500 ms",
    "Downloading model: 12% completed",
    "GPU 3/8 ready",
    "epoch time 12.3 s",
    "world_size 8 rank 3/8 loss scale 1.0",
    "Num epochs = 3",
    "  Total optimization steps = 1,250",
    "  Num examples = 52,002",
    "  Gradient Accumulation steps = 8",
    "max_steps=500000 warmup_steps=2000",
    "warmup_steps: 2000",
    "save_steps: 500, logging_steps: 10, eval_steps: 500",
    "Saving every 1000 steps",
    "lr scheduler: cosine with 2000 warmup steps, total steps 100000",
    "[2024-05-01 12:00:00,123] [INFO] [config.py:1000:print]   steps_per_print .............. 10",
    "  train_iters ..................................... 500000",
    "  eval_interval ................................... 1000",
    "  eval_iters ...................................... 10",
    "Traceback (most recent call last):",
    '  File "train.py", line 120, in step',
    "ncclInternalError: step 12 failed",
    "NCCL INFO Channel 12/16 : 0 1 2 3",
    "node1:1234:5678 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 busId 1000 - Init COMPLETE",
    "Epoch 5: reducing learning rate of group 0 to 1.0000e-05.",
    "Early stopping patience 3/10",
    "Loading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.5it/s]",
    "Map (num_proc=8):  50%|█████     | 26001/52002 [00:01<00:01, 15000 examples/s]",
    "Tokenizing:  50%|█████     | 5/10 [00:01<00:01,  4.0it/s]",
    "Downloading shards: 100%|██████████| 4/4 [00:10<00:00,  2.5s/it]",
    "Filter: 100%|██████████| 4000/4000 [00:10<00:00,  2500.5 examples/s]",
    "100%|██████████| 170498071/170498071 [00:10<00:00, 15000000.0B/s]",
    "model.safetensors:  50%|█████     | 2.5G/5.0G [00:10<00:10, 250MB/s]",
    "Capturing CUDA graph shapes:  50%|█████     | 10/20 [00:01<00:01,  4.0it/s]",
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.5it/s]",
    "Processed prompts:  50%|█████     | 5/10 [00:01<00:01,  4.0it/s, est. speed input: 100 toks/s]",
    "Adding requests: 100%|██████████| 10/10",
    "Skipping batches:  12%|#         | 144/1200 [00:01<00:10, 100it/s]",
    "Sampling:  50%|#####     | 25/50 [00:01<00:01, 20it/s]",
    "Downloading |████▌            | 60/600 [10%] in 10s (2.0/s, eta: 5:00)",
    "Downloading 10% (60 of 600) |####      | ETA:   0:05:00",
    "Downloading  [####----------]   10%  00:05:00",
    "Epoch 12/100",
    "step time: 1.234 s",
    "avg step time 0.5",
    "Iteration time 12.3 ms",
    "ETA: 10 steps remaining",
    "2024-05-01 12:00:00 INFO worker 12/64 joined",
    "batch size 512/8",
    "Using batch 32 per GPU, loss scale 65536",
    "[batch] 5/10 jobs done",
    "retry 3/10 after loss of connection",
    "attempt 2/3",
    "dataset 3/10 loaded",
    "tcp://10.0.0.1:29500 step",
    "srun: step 12345.0 started",
    "slurmstepd: error: *** STEP 12345.0 ON cn-1 CANCELLED ***",
    "Job 12345 step 0 creation",
    "torchrun: generation 3, restart 1/3",
    "Reading file 10/200 lossless",
    "line 12 of train.py: step",
    "2024-05-01T12:00:00 step_size=0.1 loss=2.3",
    "[1/3] Building CUDA extension",
    "[10/20] c++ -MMD -MF x.o",
    "ninja: build 5/10",
    "10:20:30 loss of signal",
    "[12] pods pending",
    "[2024] train started",
    "123: learn more at http",
    "[12]\ttrain samples loaded",
]  # fmt: skip


@pytest.mark.story("PRG-07")
@pytest.mark.parametrize("name", TRAINING)
def test_the_steps_of_a_framework_are_read(name: str) -> None:
    reader, steps = ProgressReader(), []
    for n in range(10, 401, 10):
        reader.feed(TRAINING[name].format(n=n, m=n - 9), AT, "log")
        steps.append(reader.progress.step)
    assert steps == list(range(10, 401, 10))


@pytest.mark.story("PRG-02")
@pytest.mark.parametrize("name", EVALUATION)
def test_an_evaluation_moves_neither_step_nor_loss(name: str) -> None:
    reader = ProgressReader()
    for n in range(1, 101):
        reader.feed(f"step {n}/2000 loss 3.0", AT, "log")
    for n in range(10, 401, 10):
        reader.feed(EVALUATION[name].format(n=n), AT, "log")
    assert (reader.progress.step, reader.progress.loss) == (100, 3.0)


@pytest.mark.story("PRG-07")
@pytest.mark.parametrize("line", NEITHER)
def test_what_is_neither(line: str) -> None:
    seen = read_line(line)
    assert (seen.step, seen.counter) == (None, None)


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("olmo", "OLMo"),
        ("olmo-core", "OLMo"),
        ("verl", "verl"),
        ("torchtune", "torchtune"),
        ("mindformers", "MindFormers"),
        ("paddlenlp", "PaddleNLP"),
        ("ppdet", "PaddlePaddle"),
        ("yolo", "Ultralytics"),
        ("detectron2", "detectron2"),
        ("neox", "GPT-NeoX"),
        ("nanotron", "nanotron"),
        ("megatron", "Megatron-LM"),
        ("llamafactory", "LLaMA-Factory"),
        ("llmfoundry", "Composer"),
        ("titan", "torchtitan"),
        ("xgboost", "boosted trees"),
    ],
)
def test_the_format_has_its_frameworks_name(name: str, called: str) -> None:
    lines = [("log", TRAINING[name].format(n=n, m=n - 9)) for n in range(10, 401, 10)]
    assert ProgressReader.rebuilt(lines, AT).format == called


def test_losses_without_a_step_count_only_where_nothing_else_does() -> None:
    entry = "{{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': {epoch}}}"
    alone, beside = ProgressReader(), ProgressReader()
    assert read_line(entry.format(epoch=0.1)).counter == ENTRIES
    for n in range(1, 41):
        alone.feed(entry.format(epoch=n / 100), AT, "log")
        beside.feed(entry.format(epoch=n / 100), AT, "log")
        if n > 5:  # the bar begins late
            beside.feed(f"  1%|#         | {n * 10}/2000 [00:10<14:00,  1.2it/s]", AT, "log")
    assert alone.progress.step is not None and alone.progress.step > 30
    assert (alone.format, beside.progress.step, beside.progress.total) == ("Hugging Face Trainer", 400, 2000)


def test_an_epoch_is_no_step_of_the_epoch_of_its_first_digit() -> None:
    lines = [("log", f"Epoch {epoch}/100 - loss: 2.1 - val_loss: 2.2") for epoch in range(1, 31)]
    assert ProgressReader.rebuilt(lines, AT).progress.step == 30


def test_a_run_of_entries_alone_is_at_training_also_once_its_loss_has_diverged() -> None:
    """As long as it looked like start-up, a hang was seen after an hour only."""
    entries = [f"{{'loss': {'nan' if n > 20 else 2.3}, 'grad_norm': 1.2, 'epoch': {n / 100}}}" for n in range(1, 41)]
    progress = ProgressReader.rebuilt([("log", entry) for entry in entries], AT).progress
    assert (progress.phase, progress.step, progress.diverged) == ("train", 37, True)


def test_where_entries_tell_of_epochs_a_bar_of_another_length_is_an_evaluation() -> None:
    """The one behind the last step has no word before it."""
    lines = []
    for n in range(1, 601):
        lines += [f"  1%|#| {n}/600 [10:00<10:00,  1.2s/it]"]
        lines += [f"{{'loss': 2.3, 'epoch': {n / 100}}}"] if n % 50 == 0 else []
    lines += [f"  1%|#| {n}/60 [10:00<10:00,  1.2s/it]" for n in range(1, 61)]
    assert ProgressReader.rebuilt([("log", line) for line in lines], AT).progress.step == 600


def test_a_bar_of_training_in_percent_is_progress() -> None:
    lines = [("log", f"Training  [{'#' * (n // 10)}{'-' * (10 - n // 10)}]  {n:3d}%  00:05:00") for n in range(1, 101)]
    assert ProgressReader.rebuilt(lines, AT).progress.step == 1_000


def test_steps_far_apart_are_believed_when_they_go_on() -> None:
    reader = ProgressReader.rebuilt([("log", f"step {n}k/1000k loss 2.31") for n in range(10, 401, 10)], AT)
    assert reader.progress.step == 400_000


def test_batches_of_unknown_number_are_added_up_over_epochs() -> None:
    lines = [("log", f"{epoch}epoch:train:{n - 9}-{n}batch: loss=2.31") for epoch in (1, 2) for n in range(10, 101, 10)]
    assert ProgressReader.rebuilt(lines, AT).progress.step == 200


def test_a_stamp_of_the_platform_before_each_line_changes_nothing() -> None:
    """As ``kubectl logs --timestamps`` prints them."""
    for name, template in TRAINING.items():
        plain, stamped = ProgressReader(), ProgressReader()
        for n in range(10, 401, 10):
            line = template.format(n=n, m=n - 9)
            plain.feed(line, AT, "log")
            stamped.feed(f"2026-05-01T12:00:{n % 60:02d}.123456789Z {line}", AT, "log")
        assert (name, stamped.progress.step) == (name, plain.progress.step)


@pytest.mark.story("PRG-02")
def test_an_evaluations_bar_without_a_name_is_none_of_trainings() -> None:
    """Hugging Face's: what says so is the line before it. Its last evaluation comes when training's bar is full."""
    stamp = "2026-05-01T12:00:00.000000000Z "
    lines = [f"{stamp}Map (num_proc=8): 100%|##| 52002/52002 [00:10<00:00, 5000 examples/s]"]
    for end in (400, 800, 1200):
        lines += [f"{stamp} 1%|#| {n}/1200 [10:00<10:00,  1.2s/it]" for n in range(end - 399, end + 1)]
        lines += [f"{stamp}***** Running Evaluation *****"]
        lines += [f"{stamp} 1%|#| {n}/60 [10:00<10:00,  1.2s/it]" for n in range(1, 61)]
        lines += [f"{stamp}{{'eval_loss': 1.1, 'epoch': 1.0}}"]
    reader, phases = ProgressReader(), []
    for line in lines:
        reader.feed(line, AT, "log")
        phases += [reader.progress.phase] if reader.progress.phase not in phases[-1:] else []
    assert (reader.progress.step, reader.progress.total) == (1200, 1200)
    assert phases[:4] == ["startup", "train", "eval", "train"]
